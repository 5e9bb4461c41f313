// Measures how fast one block can copy from its own memory to another GPU's: by loads and stores of its threads, and
// only by the copy unit (TMA) with a ring of stages in shared memory. This is the lower bound for a put by one block.
//
//   nvcc -arch=sm_90 -O3 -std=c++17 experiments/shmem/baseline/one_block_copy.cu -o one_block_copy && ./one_block_copy
//
// Requires two GPUs with peer access. Prints CSV: method, bytes per stage, stages, bytes, median time of a launch in us
// (over 8 consecutive ones), GB/s, and whether bytes are wrong.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#define OK(call)                                                                 \
    do {                                                                         \
        cudaError_t error = (call);                                              \
        if (error != cudaSuccess) {                                              \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));       \
            return 1;                                                            \
        }                                                                        \
    } while (0)

extern __shared__ __align__(128) char stage[];

__device__ uint32_t shared_address(const void* at) { return (uint32_t)__cvta_generic_to_shared(at); }

// Waits until the stage has been filled. Returns false after a bounded number of attempts, so that a stalled copy fails
// instead of hanging.
__device__ bool filled(uint64_t* barrier, uint32_t parity) {
    for (int turn = 0; turn < 1 << 20; turn++) {
        uint32_t done;
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
        if (done) return true;
    }
    return false;
}

// Copies by the copy unit, driven by one thread. Up to BEHIND stores may still read their stages when the next load
// starts.
template <int BEHIND>
__global__ void by_copy_unit(char* to, const char* from, size_t bytes, int chunk, int stages, int* failed) {
    __shared__ uint64_t barrier[64];
    if (threadIdx.x) return;
    for (int i = 0; i < stages; i++) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(barrier + i)));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    size_t chunks = bytes / chunk;
    auto load = [&](size_t k) {
        int s = k % stages;
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier + s)), "r"(chunk)
                     : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         shared_address(stage + s * chunk)),
                     "l"(from + k * chunk), "r"(chunk), "r"(shared_address(barrier + s))
                     : "memory");
    };
    size_t ahead = stages - BEHIND;
    for (size_t k = 0; k < ahead && k < chunks; k++) load(k);
    for (size_t k = 0; k < chunks; k++) {
        int s = k % stages;
        if (!filled(barrier + s, (k / stages) & 1)) {
            *failed = 1;
            return;
        }
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to + k * chunk),
                     "r"(shared_address(stage + s * chunk)), "r"(chunk)
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        if (k + ahead < chunks) {
            asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(BEHIND) : "memory");
            load(k + ahead);
        }
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Copies by all threads: EACH 16-byte loads per thread, followed by as many stores.
template <int EACH>
__global__ void by_threads(char* to, const char* from, size_t bytes) {
    uint4* target = (uint4*)to;
    const uint4* source = (const uint4*)from;
    size_t words = bytes / 16;
    for (size_t i = threadIdx.x; i < words; i += (size_t)blockDim.x * EACH) {
        uint4 kept[EACH];
        for (int j = 0; j < EACH; j++)
            if (i + j * blockDim.x < words) kept[j] = source[i + j * blockDim.x];
        for (int j = 0; j < EACH; j++)
            if (i + j * blockDim.x < words) target[i + j * blockDim.x] = kept[j];
    }
}

template <typename F>
double median_us(F launch) {
    std::vector<float> times;
    cudaEvent_t begin, end;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    for (int turn = 0; turn < 9; turn++) {
        float ms;
        cudaEventRecord(begin);
        for (int i = 0; i < 8; i++) launch();
        cudaEventRecord(end);
        cudaEventSynchronize(end);
        cudaEventElapsedTime(&ms, begin, end);
        times.push_back(ms / 8 * 1e3f);
    }
    std::sort(times.begin(), times.end());
    return times[4];
}

int main() {
    const size_t most = 64 << 20;
    char *from, *to;
    int* failed;
    OK(cudaSetDevice(1));
    OK(cudaMalloc(&to, most));
    OK(cudaSetDevice(0));
    OK(cudaDeviceEnablePeerAccess(1, 0));
    OK(cudaMalloc(&from, most));
    OK(cudaMallocManaged(&failed, sizeof *failed));
    *failed = 0;
    std::vector<char> sent(most), came(most);
    for (size_t i = 0; i < most; i++) sent[i] = i * 7 + i / 4096;
    OK(cudaMemcpy(from, sent.data(), most, cudaMemcpyDefault));
    OK(cudaFuncSetAttribute(by_copy_unit<1>, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 << 10));
    OK(cudaFuncSetAttribute(by_copy_unit<4>, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 << 10));
    printf("way,chunk,stages,bytes,us,GB_s,wrong\n");
    for (size_t bytes : {size_t(128 << 10), size_t(512 << 10), size_t(2 << 20), size_t(8 << 20), most}) {
        auto say = [&](const char* way, int chunk, int stages, double us) {
            cudaMemcpy(came.data(), to, bytes, cudaMemcpyDefault);
            bool wrong = memcmp(came.data(), sent.data(), bytes) != 0;
            cudaMemset(to, 0, bytes);
            printf("%s,%d,%d,%zu,%.2f,%.2f,%d\n", way, chunk, stages, bytes, us, bytes / us / 1e3, wrong);
        };
        say("lsu4-256", 16, 0, median_us([&] { by_threads<4><<<1, 256>>>(to, from, bytes); }));
        say("lsu8-256", 16, 0, median_us([&] { by_threads<8><<<1, 256>>>(to, from, bytes); }));
        say("lsu4-1024", 16, 0, median_us([&] { by_threads<4><<<1, 1024>>>(to, from, bytes); }));
        say("lsu8-1024", 16, 0, median_us([&] { by_threads<8><<<1, 1024>>>(to, from, bytes); }));
        for (int chunk : {2048, 4096, 8192, 16384})
            for (int room : {48 << 10, 96 << 10, 192 << 10}) {
                int stages = std::min(room / chunk, 48);
                say("tma1", chunk, stages, median_us([&] {
                        by_copy_unit<1><<<1, 32, stages * chunk>>>(to, from, bytes, chunk, stages, failed);
                    }));
                if (stages > 5)
                    say("tma4", chunk, stages, median_us([&] {
                            by_copy_unit<4><<<1, 32, stages * chunk>>>(to, from, bytes, chunk, stages, failed);
                        }));
            }
        OK(cudaDeviceSynchronize());
        if (*failed) {
            fprintf(stderr, "a stage was not filled in time\n");
            return 1;
        }
    }
}
