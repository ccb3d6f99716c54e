// Put into every library, before its own code: compares a module's tensors with what was recorded
// of them, in one pass. Called at every run by the loader; see loaders/placement.py.
#if __has_include(<torch/csrc/inductor/aoti_torch/c/shim.h>)
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

// Per tensor the record holds: address of its memory, dtype, rank, then size and stride of each
// dimension. Writes the record, or compares with it. Returns 0; where a tensor differs, its number
// from 1; where one can't be read, -1. Weak, as a library may be made of several sources.
extern "C" __attribute__((weak, visibility("default"))) int64_t AotbuildPlacement(
    const AtenTensorHandle* tensors,
    int64_t count,
    int64_t* record,
    int32_t compare) {
  for (int64_t i = 0; i < count; ++i) {
    AtenTensorHandle tensor = tensors[i];
    void* data = nullptr;
    int32_t dtype = 0;
    int64_t rank = 0;
    int64_t* sizes = nullptr;
    int64_t* strides = nullptr;
    if (aoti_torch_get_data_ptr(tensor, &data) || aoti_torch_get_dtype(tensor, &dtype) ||
        aoti_torch_get_dim(tensor, &rank) || aoti_torch_get_sizes(tensor, &sizes) ||
        aoti_torch_get_strides(tensor, &strides)) {
      return -1;
    }
    const int64_t address = reinterpret_cast<intptr_t>(data);
    if (!compare) {
      record[0] = address;
      record[1] = dtype;
      record[2] = rank;
    } else if (record[0] != address || record[1] != dtype || record[2] != rank) {
      return i + 1;
    }
    record += 3;
    for (int64_t d = 0; d < rank; ++d, record += 2) {
      if (!compare) {
        record[0] = sizes[d];
        record[1] = strides[d];
      } else if (record[0] != sizes[d] || record[1] != strides[d]) {
        return i + 1;
      }
    }
  }
  return 0;
}
#endif
