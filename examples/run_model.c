/*
 * Runs a model once, in C.
 *
 *     run_model MODEL.tar [INPUT.bin ...]
 *
 * Each file has the bytes of one input, in the order of the model's inputs. Inputs without a file
 * are zero. The bytes of output number i are written to the file outputI.bin.
 */
#include <stdio.h>
#include <stdlib.h>
#include <tvm_interop/runtime.h>

static void check(tvi_status status) {
  if (status == TVI_OK) return;
  fprintf(stderr, "run_model: %s\n", tvi_last_error());
  exit(1);
}

static void print_tensor(const char* kind, const tvi_tensor_info* info) {
  printf("%s `%s`: %zu bytes, shape (", kind, info->name, info->nbytes);
  for (int32_t axis = 0; axis < info->rank; ++axis) {
    printf("%s%lld", axis > 0 ? ", " : "", (long long)info->shape[axis]);
  }
  printf(")\n");
}

static void read_input(const char* path, void* buffer, size_t nbytes) {
  FILE* file = fopen(path, "rb");
  if (file == NULL || fread(buffer, 1, nbytes, file) != nbytes || fgetc(file) != EOF) {
    fprintf(stderr, "run_model: `%s` must have the %zu bytes of the input\n", path, nbytes);
    exit(1);
  }
  fclose(file);
}

static void write_output(size_t index, const void* buffer, size_t nbytes) {
  char path[64];
  snprintf(path, sizeof(path), "output%zu.bin", index);
  FILE* file = fopen(path, "wb");
  if (file == NULL || fwrite(buffer, 1, nbytes, file) != nbytes || fclose(file) != 0) {
    fprintf(stderr, "run_model: `%s` cannot be written\n", path);
    exit(1);
  }
}

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: run_model MODEL.tar [INPUT.bin ...]\n");
    return 2;
  }
  tvi_model* model = NULL;
  check(tvi_model_load(argv[1], NULL, &model));
  if (tvi_model_warning(model) != NULL) fprintf(stderr, "%s\n", tvi_model_warning(model));

  /* The model's first shape. */
  tvi_instance* instance = NULL;
  check(tvi_instance_create(model, 0, &instance));
  const char* warning = tvi_instance_warning(instance);
  if (warning != NULL) fprintf(stderr, "%s\n", warning);
  for (size_t i = 0; i < tvi_model_num_inputs(model); ++i) {
    const tvi_tensor_info* info = tvi_model_input(model, 0, i);
    print_tensor("input", info);
    if ((int)i + 2 < argc) {
      read_input(argv[i + 2], tvi_instance_input_buffer(instance, i), info->nbytes);
    }
  }

  check(tvi_run(instance, NULL, NULL)); /* on the instance's own buffers */

  for (size_t i = 0; i < tvi_model_num_outputs(model); ++i) {
    const tvi_tensor_info* info = tvi_model_output(model, 0, i);
    print_tensor("output", info);
    write_output(i, tvi_instance_output_buffer(instance, i), info->nbytes);
  }
  tvi_instance_free(instance);
  tvi_model_free(model);
  return 0;
}
