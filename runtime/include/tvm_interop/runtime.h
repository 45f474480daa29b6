/*
 * Runs models that tvm_interop has compiled, without Python and without TVM.
 *
 *     tvi_model* model;
 *     tvi_instance* instance;
 *     if (tvi_model_load("model.tar", NULL, &model) != TVI_OK ||
 *         tvi_instance_create(model, 0, &instance) != TVI_OK) {
 *       fprintf(stderr, "%s\n", tvi_last_error());
 *       exit(1);
 *     }
 *     const void* inputs[] = {image};
 *     void* outputs[] = {scores};
 *     tvi_run(instance, inputs, outputs);
 *
 * A model is loaded once. Each thread that runs it makes an instance of its own. All instances
 * share the model's weights.
 *
 * Models contain machine code. `tvi_model_load` checks everything else in a file, and runs none of
 * the code. `tvi_instance_create` runs the code with all rights of the process. So make instances
 * only of files whose origin you trust, for example by their SHA-256.
 *
 * Errors: each function that can fail returns a status. After a failure, `tvi_last_error` gives a
 * text that names what is at fault, and output parameters keep the values that they had. Functions
 * without a status return 0 or NULL if the model or instance is NULL.
 *
 * GPUs: a model that was compiled for one NVIDIA GPU can be loaded on any machine.
 * `tvi_instance_create` then looks for CUDA, which this library is not linked to: the driver
 * `libcuda.so.1` and the runtime `libcudart.so.13`, and `libcudnn.so.9` and `libcublasLt.so.13` if
 * the model needs them. Inputs and outputs may be memory of the host or of that GPU, and are
 * copied. A program's own work on memory of the GPU must have ended before a run begins. The work
 * of the run has ended when the call returns. Each instance has a copy of the weights on the GPU.
 *
 * Threads: all functions may be called from any thread. Only one thread at a time may use an
 * instance; a second thread gets TVI_ERROR_EXECUTION. A model may be freed while its instances
 * live.
 *
 * Stability: within one major version, functions and numbers keep their meaning, and structures
 * only grow at their end.
 */
#ifndef TVM_INTEROP_RUNTIME_H_
#define TVM_INTEROP_RUNTIME_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(TVI_BUILDING_LIBRARY)
#define TVI_EXPORT __attribute__((visibility("default")))
#else
#define TVI_EXPORT
#endif

/* The version of this interface: the macros give the header's version, and the functions give the
 * version of the loaded library. */
#define TVI_VERSION_MAJOR 1
#define TVI_VERSION_MINOR 0
TVI_EXPORT int32_t tvi_version_major(void);
TVI_EXPORT int32_t tvi_version_minor(void);

typedef enum tvi_status {
  TVI_OK = 0,
  TVI_ERROR_INVALID_ARGUMENT = 1, /* an argument is wrong */
  TVI_ERROR_ARTIFACT = 2,         /* the file is missing, damaged, unsafe or not a model */
  TVI_ERROR_UNSUPPORTED = 3,      /* this machine or this library cannot run the model */
  TVI_ERROR_EXECUTION = 4,        /* an operator failed, or the instance is in use */
  TVI_ERROR_OUT_OF_MEMORY = 5,
  TVI_ERROR_INTERNAL = 6 /* a mistake of this library: please report it */
} tvi_status;

/* The text of the latest error on the calling thread; "" if there was none. It is valid until the
 * thread's next call that fails. */
TVI_EXPORT const char* tvi_last_error(void);

/* The type of a tensor's elements. TVI_BOOL has one byte, 0 or 1. TVI_FLOAT16 is IEEE 754. */
typedef enum tvi_type {
  TVI_BOOL = 1,
  TVI_INT8 = 2,
  TVI_INT16 = 3,
  TVI_INT32 = 4,
  TVI_INT64 = 5,
  TVI_UINT8 = 6,
  TVI_UINT16 = 7,
  TVI_UINT32 = 8,
  TVI_UINT64 = 9,
  TVI_FLOAT16 = 10,
  TVI_FLOAT32 = 11,
  TVI_FLOAT64 = 12,
  TVI_BFLOAT16 = 13
} tvi_type;

/* Describes an input or output. The description belongs to its model, and is valid until the model
 * is freed. Tensors are row-major and contiguous. */
typedef struct tvi_tensor_info {
  const char* name;
  tvi_type type;
  int32_t rank;
  const int64_t* shape; /* `rank` numbers */
  size_t nbytes;        /* the size of the whole tensor */
} tvi_tensor_info;

typedef struct tvi_model tvi_model;
typedef struct tvi_instance tvi_instance;

/* Options for loading. Set `struct_size` to sizeof(tvi_load_options) and everything else to 0 or
 * NULL for the defaults. */
typedef struct tvi_load_options {
  size_t struct_size;
  /* The SHA-256 that the file must have, in hexadecimal; NULL for any. */
  const char* sha256;
  /* The file of oneDNN. NULL takes the file that the environment variable
   * TVM_INTEROP_ONEDNN_LIBRARY names. If the variable is not set, libdnnl.so.3 is looked for beside
   * this library, where oneDNN's wheel puts it, and in the system's folders. */
  const char* onednn_path;
  /* What happens if a library that a model needs is missing: oneDNN, or cuDNN or cuBLASLt for a
   * GPU. With 0, the model runs the slower kernels that it carries for this case, and
   * `tvi_model_warning` says so. With 1, the load fails. */
  int32_t needs_onednn;
} tvi_load_options;

/* Loads a model from a file that `tvm-interop compile` wrote. `options` may be NULL. Weights stay
 * in the file until they are used, so do not overwrite the file in place. Replacing it by another
 * file is safe. */
TVI_EXPORT tvi_status tvi_model_load(const char* path, const tvi_load_options* options,
                                     tvi_model** model);
/* Loads a model from the bytes of a file that `tvm-interop compile` wrote. The bytes are copied:
 * you may free them afterwards. */
TVI_EXPORT tvi_status tvi_model_load_memory(const void* data, size_t nbytes,
                                            const tvi_load_options* options, tvi_model** model);
/* Frees a model; NULL is allowed. Its instances can still be used. */
TVI_EXPORT void tvi_model_free(tvi_model* model);

/* A warning about a loaded model, for example that oneDNN is missing; NULL if there is none. Valid
 * as long as the model. */
TVI_EXPORT const char* tvi_model_warning(const tvi_model* model);
/* 1 if a kernel library that the model needs is missing, so that slower kernels run; else 0. */
TVI_EXPORT int32_t tvi_model_uses_fallback(const tvi_model* model);

/* The device that the model was compiled for: "cpu:0", or a GPU such as "cuda:0". NULL if `shape`
 * is out of range. */
TVI_EXPORT const char* tvi_model_device(const tvi_model* model, size_t shape);
/* A model may be compiled for several shapes of its inputs. They are numbered from 0. */
TVI_EXPORT size_t tvi_model_num_shapes(const tvi_model* model);
TVI_EXPORT size_t tvi_model_num_inputs(const tvi_model* model);
TVI_EXPORT size_t tvi_model_num_outputs(const tvi_model* model);
/* Describe input or output number `index` for a shape; NULL if a number is out of range. */
TVI_EXPORT const tvi_tensor_info* tvi_model_input(const tvi_model* model, size_t shape,
                                                  size_t index);
TVI_EXPORT const tvi_tensor_info* tvi_model_output(const tvi_model* model, size_t shape,
                                                   size_t index);
/* The size of an output along one axis may depend on values that the model computes. For example, a
 * detector gives as many rows as it finds boxes. The result is this axis of output number `index`,
 * or -1 if the output's shape is fixed. `tvi_model_output` gives the output's largest shape. Run
 * such a model by `tvi_run_counted`. */
TVI_EXPORT int32_t tvi_model_output_counted_axis(const tvi_model* model, size_t index);
/* An input or output may be strings, such as the labels of a classifier. A run takes or gives the
 * position of each string in a list of strings, as int64. For a string that is not in the list of
 * an input, give -1. `num_strings` is the length of the list of input or output number `index`, or
 * 0 if it is not strings. `string` is the string at a position, or NULL if there is none. The
 * string is UTF-8, and lives as long as the model. */
TVI_EXPORT size_t tvi_model_input_num_strings(const tvi_model* model, size_t index);
TVI_EXPORT const char* tvi_model_input_string(const tvi_model* model, size_t index,
                                              int64_t position);
TVI_EXPORT size_t tvi_model_output_num_strings(const tvi_model* model, size_t index);
TVI_EXPORT const char* tvi_model_output_string(const tvi_model* model, size_t index,
                                               int64_t position);
/* `tvi_run` reads an input in place, without a copy, if its address is a multiple of this number of
 * bytes. The number is 0 if `tvi_run` always copies the input, for example to a GPU, or if `shape`
 * or `index` is out of range. */
TVI_EXPORT size_t tvi_model_input_alignment(const tvi_model* model, size_t shape, size_t index);
/* The size of the model's weights. On a CPU, all instances and all shapes share the weights. On a
 * GPU, each instance has its own copy. */
TVI_EXPORT size_t tvi_model_weights_nbytes(const tvi_model* model);
/* The memory of one instance's tensors, its inputs and outputs among them; 0 if `shape` is out of
 * range. Weights that a kernel library packs for itself are not counted. On a CPU, instances that
 * do not run at the same time may share the memory of tensors that are neither inputs nor
 * outputs. */
TVI_EXPORT size_t tvi_model_instance_nbytes(const tvi_model* model, size_t shape);
/* The batch size of a shape if the model was compiled for a list of batch sizes; else 0. */
TVI_EXPORT int64_t tvi_model_batch_size(const tvi_model* model, size_t shape);
/* The number of rows of a shape if the model was compiled for a range of rows; else 0. The rows of
 * an input or output lie along the dimension that differs from shape to shape. */
TVI_EXPORT int64_t tvi_model_row_size(const tvi_model* model, size_t shape);
/* The name of the dimension whose size is the number of rows, such as "batch"; NULL if the model
 * was not compiled for a range. */
TVI_EXPORT const char* tvi_model_row_dimension(const tvi_model* model);
/* The number of ranges that the model was compiled for: 0, 1 or 2. With two, such as a batch and
 * the length of a sequence, there is a shape for each combination of their numbers of rows.
 * `tvi_model_row_size` and `tvi_model_row_dimension` are for range number 0. */
TVI_EXPORT size_t tvi_model_num_ranges(const tvi_model* model);
/* The name of a range's dimension; NULL if there is no such range. */
TVI_EXPORT const char* tvi_model_range_dimension(const tvi_model* model, size_t range);
/* The number of rows of a shape along a range's dimension; 0 if there is no such range or shape. */
TVI_EXPORT int64_t tvi_model_range_size(const tvi_model* model, size_t range, size_t shape);
/* If a run has fewer rows than its shape, its inputs are filled up (padded) to the rows of the
 * shape. A mask is an input that is filled up with 0. A run may be filled up only if input number
 * `input` is 1 in some rows. The result names them: the "first" row, at least one row ("any"),
 * "all" rows, or "nowhere" for no condition. NULL if the input is not a mask. For "first", "any"
 * and "all", all numbers of the mask must be from 0 to 1. With two ranges, the rows are the rows of
 * the second range, and the condition must hold for each row of the first range. */
TVI_EXPORT const char* tvi_model_row_mask(const tvi_model* model, size_t input);
/* Finds the number of the shape that runs `rows` rows: the shape with the fewest rows that are
 * enough. */
TVI_EXPORT tvi_status tvi_model_find_rows(const tvi_model* model, int64_t rows, size_t* shape);
/* Finds the number of the shape that runs the numbers of rows in `sizes`, one for each range in
 * order. */
TVI_EXPORT tvi_status tvi_model_find_sizes(const tvi_model* model, const int64_t* sizes,
                                           size_t num_sizes, size_t* shape);
/* Finds the number of the shape that was compiled for inputs of the shapes `shapes`. `shapes[i]`
 * has the dimensions of input i. */
TVI_EXPORT tvi_status tvi_model_find_shape(const tvi_model* model, const int64_t* const* shapes,
                                           size_t* shape);

/* The runs of all instances of a model at one shape, since the model was loaded. Runs that failed
 * and runs of `tvi_profile` are not counted. Set `struct_size` to sizeof(tvi_run_counts). The share
 * of rows that were filled up is 1 - rows_given / rows_computed. */
typedef struct tvi_run_counts {
  size_t struct_size;
  uint64_t exact;     /* runs with as many rows as the shape has */
  uint64_t filled_up; /* runs with fewer rows */
  /* The rows of all runs together. With two ranges, the rows of a run are the product of both
   * numbers. A run of a model without a range counts as one row. */
  uint64_t rows_given;
  uint64_t rows_computed;
} tvi_run_counts;

/* Writes the counts of a shape to `counts`. Any thread may call this while instances run. */
TVI_EXPORT tvi_status tvi_model_run_counts(const tvi_model* model, size_t shape,
                                           tvi_run_counts* counts);

/* Makes an instance of a model, which runs the model for one shape. The call loads the model's
 * machine code, allocates tensors and prepares kernels. */
TVI_EXPORT tvi_status tvi_instance_create(tvi_model* model, size_t shape, tvi_instance** instance);
/* A pool of threads of the program. Set `struct_size` to sizeof(tvi_thread_pool). */
typedef struct tvi_thread_pool {
  size_t struct_size;
  void* context; /* given to `submit` */
  /* How many of the pool's threads may work for one instance at the same time, besides the thread
   * that calls `tvi_run`; 0 to 4095. */
  int32_t num_threads;
  /* Asks the pool to call `task(argument)` on one of its threads, once and soon. Returns 0 if the
   * pool has taken the task, and any other number if it has not. In the second case, the task must
   * not be called. Several threads that run the instance may call `submit` at the same time, so it
   * must be quick and thread-safe. A task works for as long as the run has work for it, and never
   * waits for another task. If the run has ended before the task begins, the task does nothing. */
  int32_t (*submit)(void* context, void (*task)(void* argument), void* argument);
} tvi_thread_pool;

/* Makes an instance as `tvi_instance_create` does. The instance is prepared and runs on threads of
 * the program's pool. The library starts no thread for the instance, and changes no thread's
 * affinity. A run does not need the pool's threads, and ends even if none of them comes. A model
 * for a GPU does not use the pool.
 *
 * `*pool` is copied. Its `context` and `submit` must stay valid until the instance is freed. In a
 * forked child, where the pool's threads are missing, the instance runs on the library's own
 * threads. */
TVI_EXPORT tvi_status tvi_instance_create_on_pool(tvi_model* model, size_t shape,
                                                  const tvi_thread_pool* pool,
                                                  tvi_instance** instance);
/* A warning about how an instance runs; NULL if there is none. Valid as long as the instance. If
 * CUDA makes no graph of the model, the warning says why. Each run then launches the operators one
 * by one, which is slower. */
TVI_EXPORT const char* tvi_instance_warning(const tvi_instance* instance);
/* Frees an instance that no thread is running; NULL is allowed. */
TVI_EXPORT void tvi_instance_free(tvi_instance* instance);

/* Runs the model once.
 *
 * `inputs` and `outputs` have an address for each input and output, in the model's order. An input
 * is read in place, without a copy, if its address is a multiple of `tvi_model_input_alignment`,
 * which is the size of an element unless an older version compiled the model. An output is written
 * in place if its address is a multiple of 64. Outputs that share bytes with other tensors are
 * copied, so the result is right in any case. For a NULL address, the instance's own buffer is used
 * (see below). `inputs` or `outputs` may be NULL as a whole. A model for a GPU copies all tensors.
 */
TVI_EXPORT tvi_status tvi_run(tvi_instance* instance, const void* const* inputs,
                              void* const* outputs);

/* Runs the model once, as `tvi_run` does, and gives the sizes that depend on values that the model
 * computes. `sizes` has room for one number for each output: the output's size along the axis that
 * `tvi_model_output_counted_axis` names, or -1 if the output's shape is fixed. The memory of an
 * output must have its largest shape in any case. Elements beyond the size along the axis have no
 * meaning. `tvi_run` refuses a model that has such outputs. */
TVI_EXPORT tvi_status tvi_run_counted(tvi_instance* instance, const void* const* inputs,
                                      void* const* outputs, int64_t* sizes);

/* Runs the model once, as `tvi_run` does, on inputs and outputs with `rows` rows, at most as many
 * as the instance's shape has. The inputs are filled up with copies of their last row. Each row of
 * an output depends only on the same row of the inputs, so the rows that are filled up do not
 * change the results. If the rows are the positions of a sequence with a mask, the mask is filled
 * up with 0. The mask must then meet the condition of `tvi_model_row_mask`, or else
 * TVI_ERROR_INVALID_ARGUMENT is returned. With fewer rows than the shape has, tensors with rows are
 * copied. The instance's own buffers keep the size of the shape, and only their first rows are
 * used. */
TVI_EXPORT tvi_status tvi_run_rows(tvi_instance* instance, int64_t rows, const void* const* inputs,
                                   void* const* outputs);
/* Runs the model once, as `tvi_run_rows` does, on inputs and outputs with the numbers of rows in
 * `sizes`, one for each range in order. */
TVI_EXPORT tvi_status tvi_run_sizes(tvi_instance* instance, const int64_t* sizes, size_t num_sizes,
                                    const void* const* inputs, void* const* outputs);

/* The instance's own buffer for an input or output, with the size of the tensor. It is zero at
 * first, and its address does not change. NULL if `index` is out of range. */
TVI_EXPORT void* tvi_instance_input_buffer(tvi_instance* instance, size_t index);
TVI_EXPORT void* tvi_instance_output_buffer(tvi_instance* instance, size_t index);

/* When one operator ran, in nanoseconds since the run began. `name` is valid as long as the
 * instance. `op` is the operator's number in the model, from 0. `thread` is 0 for the calling
 * thread, and the number of a helper thread otherwise. `on_core_ns` is how long the thread had a
 * core between `start_ns` and `end_ns`. On a GPU, `thread` and `on_core_ns` are 0. */
typedef struct tvi_operator_time {
  const char* name;
  int32_t stream;
  int32_t thread;
  int64_t start_ns;
  int64_t end_ns;
  int64_t on_core_ns;
  int32_t op;
} tvi_operator_time;

/* Runs the model once, as `tvi_run` does, and writes when each operator ran. `times` has room for
 * `capacity` entries. `*count` becomes the number of operators. If that is more than `capacity`,
 * nothing is written to `times`, and the model does not run. */
TVI_EXPORT tvi_status tvi_profile(tvi_instance* instance, const void* const* inputs,
                                  void* const* outputs, tvi_operator_time* times, size_t capacity,
                                  size_t* count);

/* The largest number of threads that run models at once in this process, including the threads that
 * call the library. By default it is the number of cores that this process may use, or the value of
 * the environment variable TVM_INTEROP_NUM_THREADS. Returns 0 if the value of the variable is not a
 * number of threads. */
TVI_EXPORT int32_t tvi_num_threads(void);
/* Sets the number of threads that `tvi_num_threads` returns. If `pin` is not 0, each helper thread
 * that starts later stays on one core. */
TVI_EXPORT tvi_status tvi_set_num_threads(int32_t num_threads, int32_t pin);
/* The number of threads that a model was compiled for. More threads do not help. With fewer
 * threads, the parts of a run take turns. 0 if `shape` is out of range, if the model has no
 * operators, or if it is for a GPU. */
TVI_EXPORT int32_t tvi_model_num_threads(const tvi_model* model, size_t shape);

#ifdef __cplusplus
}
#endif

#endif /* TVM_INTEROP_RUNTIME_H_ */
