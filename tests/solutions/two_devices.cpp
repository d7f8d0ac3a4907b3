// What a CUDA library calls of the CUDA runtime, for two devices that run nothing: it is linked in place of the runtime,
// keeps the kernels' attributes for each device, as CUDA does, and refuses launches that need what was not set.
#include <cuda_runtime_api.h>

#include <map>
#include <set>

namespace {

constexpr size_t WITHOUT_ASKING = 48 * 1024;  // bytes of shared memory
constexpr unsigned PORTABLE_CLUSTER = 8;      // blocks

int current, said, launches;
cudaError_t last = cudaSuccess;
struct Attributes {
    size_t shared = WITHOUT_ASKING;
    bool large_clusters = false;
};
std::map<const void*, Attributes> attributes[2];
struct Configuration {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
} pushed;

cudaError_t launch(const void* kernel, size_t shared, unsigned cluster) {
    const Attributes& allowed = attributes[current][kernel];
    if (shared > allowed.shared || (cluster > PORTABLE_CLUSTER && !allowed.large_clusters))
        return last = cudaErrorInvalidValue;
    return ++launches, cudaSuccess;
}

// Of cuTensorMapEncodeTiled: no map, but success.
int encode(...) { return 0; }

}  // namespace

extern "C" {

// For the test. as: what cudaGetDevice says, `device` unless the library is to be deceived.
void two_devices_use(int device, int as) { current = device, said = as; }
int two_devices_launches() { return launches; }

cudaError_t cudaGetDevice(int* device) { return *device = said, cudaSuccess; }
cudaError_t cudaGetLastError() {
    const cudaError_t error = last;
    return last = cudaSuccess, error;
}

cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t) { return cudaSuccess; }

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
    Attributes& set = attributes[current][kernel];
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) set.shared = value;
    if (attribute == cudaFuncAttributeNonPortableClusterSizeAllowed) set.large_clusters = value;
    return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void**) {
    unsigned cluster = 1;
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) cluster = config->attrs[i].val.clusterDim.x;
    return launch(kernel, config->dynamicSmemBytes, cluster);
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t shared, cudaStream_t) {
    return launch(kernel, shared, 1);
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
    *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
    return cudaSuccess;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
    pushed = {grid, block, shared, stream};
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
    *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared;
    *static_cast<cudaStream_t*>(stream) = pushed.stream;
    return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
    *function = reinterpret_cast<void*>(encode);
    *found = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

// What nvcc registers as a library is loaded is not looked at.
void** __cudaRegisterFatBinary(void*) { return nullptr; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
}
