// TVM's source includes this header. It is empty, because `launch.h`, which is included first,
// declares everything that the source needs.
#pragma once
