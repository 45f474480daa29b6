#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "runtime/cpu/quota.h"
#include "tests/cpp/check.h"

namespace {

namespace fs = std::filesystem;

// A temporary folder that stands for the root folder of a machine.
class FakeRoot {
 public:
  FakeRoot() {
    std::string pattern = (fs::temp_directory_path() / "quota_XXXXXX").string();
    CHECK(mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~FakeRoot() { fs::remove_all(path); }
  void Write(const std::string& file, const std::string& text) const {
    const fs::path at = fs::path(path + "/" + file);
    fs::create_directories(at.parent_path());
    std::ofstream(at) << text;
  }
  double Quota() const { return tvm_interop::CpuQuota(path); }

  std::string path;
};

TEST_CASE(NoGroupsNoLimit) {
  const FakeRoot root;
  CHECK(std::isinf(root.Quota()));
}

TEST_CASE(Version2TakesTheLeastOfAllAround) {
  const FakeRoot root;
  root.Write("proc/self/cgroup", "0::/a/b\n");
  CHECK(std::isinf(root.Quota()));
  root.Write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  CHECK(std::isinf(root.Quota()));
  root.Write("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  CHECK_EQ(root.Quota(), 1.5);
  root.Write("sys/fs/cgroup/a/b/cpu.max", "400000 100000\n");
  CHECK_EQ(root.Quota(), 1.5);
  // In a container, the file of the container's own group lies at the root of the cgroup folders.
  root.Write("sys/fs/cgroup/cpu.max", "100000 100000\n");
  CHECK_EQ(root.Quota(), 1.0);
}

TEST_CASE(Version1) {
  const FakeRoot root;
  root.Write("proc/self/cgroup", "4:memory:/m\n3:cpu,cpuacct:/docker/x\n");
  root.Write("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "-1\n");
  root.Write("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000\n");
  CHECK(std::isinf(root.Quota()));
  root.Write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "250000\n");
  root.Write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  CHECK_EQ(root.Quota(), 2.5);
  root.Write("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "50000\n");
  CHECK_EQ(root.Quota(), 0.5);
}

TEST_CASE(NonsenseIsNoLimit) {
  const FakeRoot root;
  root.Write("proc/self/cgroup", "what is this\n0::/a\n\n:::\n");
  root.Write("sys/fs/cgroup/a/cpu.max", "0 0\n");
  CHECK(std::isinf(root.Quota()));
}

}  // namespace
