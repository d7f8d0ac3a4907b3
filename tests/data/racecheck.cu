// Right, and reported by racecheck (compute-sanitizer 2025.3, an H200: three hazards): 256 threads meet, write, and meet
// all 384, of which the others then read. With one more barrier of the 256 before that of all it reports nothing.
//   nvcc -arch=sm_90a -lineinfo -o racecheck racecheck.cu && compute-sanitizer --tool racecheck ./racecheck
#include <cstdio>

__global__ void __launch_bounds__(384, 1) meets_twice(int* out, const int* in) {
    __shared__ int ends[8], starts[257], share;
    const int thread = threadIdx.x;
    if (thread < 256) {
        const int count = in[thread];
        if (thread % 32 == 31) ends[thread / 32] = count;
        asm volatile("bar.sync 1, 256;" ::: "memory");
        int rows = count;
        for (int warp = 0; warp < thread / 32; ++warp) rows += ends[warp];
        starts[thread + 1] = rows;
        if (thread == 0) starts[0] = 0, share = rows / (count + 3);
#ifdef FURTHER
        asm volatile("bar.sync 1, 256;" ::: "memory");
#endif
        asm volatile("bar.sync 0, 384;" ::: "memory");
        out[blockIdx.x * 384 + thread] = share;
    } else {
        asm volatile("bar.sync 0, 384;" ::: "memory");
        int sum = share;
        for (int i = 0; i < 256; ++i) sum += starts[i];
        out[blockIdx.x * 384 + thread] = sum;
    }
}

int main() {
    int *in, *out;
    cudaMalloc(&in, 256 * sizeof(int));
    cudaMalloc(&out, 132 * 384 * sizeof(int));
    cudaMemset(in, 0, 256 * sizeof(int));
    meets_twice<<<132, 384>>>(out, in);
    puts(cudaGetErrorString(cudaDeviceSynchronize()));
}
