// Measures NCCL EP's low-latency dispatch and combine between the GPUs of one machine, for comparison with
// `ginlab moe`.
//
//   nccl_ep [ranks] [tokens] [hidden] [topk] [experts] [rounds]
//
// Runs one process per rank, each with its own GPU if there are enough. Tokens are bf16, because this release of NCCL
// EP does not convert them. Experts return tokens unchanged, so that each output is its token times the sum of its
// weights, which is verified. Times are measured by CUDA events: the slowest rank of each round, and the median over
// rounds. All rounds of a launch are queued after a kernel that runs for some milliseconds, so that no event waits for
// the CPU. Every wait is bounded: those of the library by timeout_ns, the process by alarm().
#include <cuda_bf16.h>
#include <nccl.h>
#include <nccl_ep.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CUDA(call)                                                                                                     \
    do {                                                                                                               \
        cudaError_t error = (call);                                                                                    \
        if (error != cudaSuccess) {                                                                                    \
            fprintf(stderr, "nccl_ep: %s: %s\n", #call, cudaGetErrorString(error));                                    \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define NCCL(call)                                                                                                     \
    do {                                                                                                               \
        ncclResult_t result = (call);                                                                                  \
        if (result != ncclSuccess) {                                                                                   \
            fprintf(stderr, "nccl_ep: %s: %s\n", #call, ncclGetErrorString(result));                                   \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

constexpr int MOST_RANKS = 8, MOST_ROUNDS = 1000, WARM = 5;

// Memory shared by the processes.
struct Shared {
    ncclUniqueId id;
    volatile int ready;
    float times[MOST_RANKS][MOST_ROUNDS][2];
    long wrong[MOST_RANKS];
};

struct Problem {
    int ranks, tokens, hidden, topk, experts, rounds;
};

// Occupies the stream for some milliseconds while the CPU queues work.
__global__ void hold(long long cycles) {
    long long from = clock64();
    while (clock64() - from < cycles) {
    }
}

// Layout by rank: multiplies a token by the sum of the weights of the rank's experts.
__global__ void weigh(__nv_bfloat16* tokens, const float* weights, const int* experts, int topk, int hidden) {
    float sum = 0;
    for (int choice = 0; choice < topk; choice++)
        if (experts[blockIdx.x * topk + choice] >= 0) sum += weights[blockIdx.x * topk + choice];
    for (int at = threadIdx.x; at < hidden; at += blockDim.x) {
        __nv_bfloat16& value = tokens[(size_t)blockIdx.x * hidden + at];
        value = __float2bfloat16(__bfloat162float(value) * sum);
    }
}

struct Tensor {
    ncclEpTensor_t tensor{};
    size_t sizes[3];
    size_t bytes = 0;

    Tensor(ncclDataType_t type, size_t size_of, std::vector<size_t> dims) {
        bytes = size_of;
        for (size_t at = 0; at < dims.size(); at++) {
            sizes[at] = dims[at];
            bytes *= dims[at];
        }
        tensor.size = sizeof(ncclEpTensor_t);
        tensor.magic = NCCL_EP_TENSOR_MAGIC;
        tensor.ndim = dims.size();
        tensor.datatype = type;
        tensor.sizes = sizes;
        CUDA(cudaMalloc(&tensor.data, bytes));
        CUDA(cudaMemset(tensor.data, 0, bytes));
    }
    template <typename T>
    void set(const std::vector<T>& values) {
        CUDA(cudaMemcpy(tensor.data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
};

template <typename T>
T sized() {
    T value;
    memset(&value, 0, sizeof value);
    value.size = sizeof value;
    value.magic = NCCL_EP_MAGIC;
    return value;
}

static unsigned long long drawn(unsigned long long& state) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return state >> 33;
}

static float value_of(int rank, int token, int at) { return ((rank * 7 + token * 3 + at) % 64 - 32) / 16.0f; }

static void of_layout(const Problem& of, int rank, ncclComm_t comm, bool by_rank, Shared* shared) {
    size_t ranks = of.ranks, tokens = of.tokens, hidden = of.hidden, topk = of.topk, local = of.experts / of.ranks;
    ncclEpGroupConfig_t config = sized<ncclEpGroupConfig_t>();
    config.version = NCCL_EP_API_VERSION;
    config.algorithm = NCCL_EP_ALGO_LOW_LATENCY;
    config.num_experts = of.experts;
    config.max_dispatch_tokens_per_rank = of.tokens;
    config.max_token_bytes = 2 * of.hidden;
    config.timeout_ns = 5000000000ull;
    ncclEpGroup_t group;
    NCCL(ncclEpCreateGroup(&group, comm, &config));

    Tensor in(ncclBfloat16, 2, {tokens, hidden}), out(ncclBfloat16, 2, {tokens, hidden});
    Tensor chosen(ncclInt64, 8, {tokens, topk}), weights(ncclFloat32, 4, {tokens, topk});
    std::vector<__nv_bfloat16> values;
    std::vector<long long> experts;
    std::vector<float> shares;
    unsigned long long state = rank + 1;
    for (int token = 0; token < of.tokens; token++) {
        for (int at = 0; at < of.hidden; at++) values.push_back(__float2bfloat16(value_of(rank, token, at)));
        for (size_t first = experts.size(); experts.size() < first + topk;) {
            long long expert = drawn(state) % of.experts;
            if (std::find(experts.begin() + first, experts.end(), expert) == experts.end()) experts.push_back(expert);
        }
        shares.insert(shares.end(), topk, 1.0f / topk);
    }
    in.set(values);
    chosen.set(experts);
    weights.set(shares);

    cudaStream_t stream;
    CUDA(cudaStreamCreate(&stream));
    ncclEpHandle_t handle;
    NCCL(ncclEpCreateHandle(&handle, group, by_rank ? NCCL_EP_LAYOUT_RANK_MAJOR : NCCL_EP_LAYOUT_EXPERT_MAJOR, &chosen.tensor, nullptr, nullptr,
                            stream));

    Tensor got = by_rank ? Tensor(ncclBfloat16, 2, {ranks, tokens, hidden}) : Tensor(ncclBfloat16, 2, {local, tokens * ranks, hidden});
    got.tensor.sizes = got.sizes;
    Tensor got_weights(ncclFloat32, 4, {ranks, tokens, topk}), got_experts(ncclInt32, 4, {ranks, tokens, topk});
    Tensor counts(ncclInt32, 4, {by_rank ? ranks : local});
    auto inputs = sized<ncclEpDispatchInputs_t>();
    auto outputs = sized<ncclEpDispatchOutputs_t>();
    auto layout = sized<ncclEpLayoutInfo_t>();
    auto back = sized<ncclEpCombineInputs_t>();
    auto sums = sized<ncclEpCombineOutputs_t>();
    inputs.tokens = &in.tensor;
    outputs.tokens = back.tokens = &got.tensor;
    sums.tokens = &out.tensor;
    if (by_rank) {
        inputs.topk_weights = &weights.tensor;
        outputs.topk_weights = &got_weights.tensor;
        outputs.topk_idx = &got_experts.tensor;
        layout.src_rank_counters = &counts.tensor;
    } else {
        sums.topk_weights = &weights.tensor;
        layout.expert_counters = &counts.tensor;
    }

    int rounds = of.rounds + WARM;
    std::vector<cudaEvent_t> events(4 * rounds);
    for (auto& event : events) CUDA(cudaEventCreate(&event));
    CUDA(cudaStreamSynchronize(stream));
    for (int round = 0; round < rounds; round++) {
        if (round == 0 || round == WARM) {
            CUDA(cudaStreamSynchronize(stream));
            hold<<<1, 1, 0, stream>>>(round == 0 ? 1 : 1000 * 1000 * 8);
        }
        CUDA(cudaEventRecord(events[4 * round], stream));
        NCCL(ncclEpDispatch(handle, &inputs, &outputs, &layout, nullptr, stream));
        CUDA(cudaEventRecord(events[4 * round + 1], stream));
        if (by_rank)
            weigh<<<ranks * tokens, 256, 0, stream>>>((__nv_bfloat16*)got.tensor.data, (float*)got_weights.tensor.data,
                                                      (int*)got_experts.tensor.data, topk, hidden);
        CUDA(cudaEventRecord(events[4 * round + 2], stream));
        NCCL(ncclEpCombine(handle, &back, &sums, nullptr, stream));
        CUDA(cudaEventRecord(events[4 * round + 3], stream));
    }
    CUDA(cudaStreamSynchronize(stream));
    for (int round = WARM; round < rounds; round++)
        for (int part = 0; part < 2; part++)
            CUDA(cudaEventElapsedTime(&shared->times[rank][round - WARM][part], events[4 * round + 2 * part], events[4 * round + 2 * part + 1]));
    std::vector<__nv_bfloat16> results(tokens * hidden);
    CUDA(cudaMemcpy(results.data(), out.tensor.data, out.bytes, cudaMemcpyDeviceToHost));
    long wrong = 0;
    for (int token = 0; token < of.tokens; token++)
        for (int at = 0; at < of.hidden; at++) {
            float wanted = value_of(rank, token, at), is = __bfloat162float(results[(size_t)token * hidden + at]);
            if (!(std::fabs(is - wanted) <= 0.02f * std::fabs(wanted) + 1e-3f)) wrong++;
        }
    shared->wrong[rank] = wrong;
    NCCL(ncclEpHandleDestroy(handle));
    NCCL(ncclEpGroupDestroy(group));
}

static double median(const Shared* shared, const Problem& of, int part) {
    std::vector<float> slowest;
    for (int round = 0; round < of.rounds; round++) {
        float most = 0;
        for (int rank = 0; rank < of.ranks; rank++) most = std::max(most, shared->times[rank][round][part]);
        slowest.push_back(most);
    }
    std::sort(slowest.begin(), slowest.end());
    return slowest[slowest.size() / 2] * 1000.0;
}

int main(int count, char** given) {
    int numbers[] = {2, 128, 7168, 8, 256, 60};
    for (int at = 1; at < count && at <= 6; at++) numbers[at - 1] = atoi(given[at]);
    Problem of{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]};
    if (of.ranks < 2 || of.ranks > MOST_RANKS || of.rounds < 1 || of.rounds > MOST_ROUNDS || of.experts % of.ranks || of.topk > of.experts) {
        fprintf(stderr, "nccl_ep: ranks 2 to %d, rounds 1 to %d, experts a multiple of the ranks\n", MOST_RANKS, MOST_ROUNDS);
        return 2;
    }
    auto* shared = (Shared*)mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    printf("layout,ranks,tokens,hidden,topk,experts,type,rounds,dispatch_us,combine_us,wrong\n");
    fflush(stdout);
    for (bool by_rank : {false, true}) {
        memset(shared, 0, sizeof *shared);
        std::vector<pid_t> children;
        for (int rank = 0; rank < of.ranks; rank++) {
            pid_t child = fork();
            if (child == 0) {
                alarm(40);
                int gpus = 0;
                CUDA(cudaGetDeviceCount(&gpus));
                CUDA(cudaSetDevice(rank % gpus));
                if (rank == 0) {
                    NCCL(ncclGetUniqueId(&shared->id));
                    __sync_synchronize();
                    shared->ready = 1;
                }
                while (!shared->ready) usleep(1000);
                ncclComm_t comm;
                NCCL(ncclCommInitRank(&comm, of.ranks, shared->id, rank));
                of_layout(of, rank, comm, by_rank, shared);
                NCCL(ncclCommDestroy(comm));
                exit(0);
            }
            children.push_back(child);
        }
        int failed = 0;
        for (pid_t child : children) {
            int status = 0;
            waitpid(child, &status, 0);
            failed |= status;
        }
        long wrong = 0;
        for (int rank = 0; rank < of.ranks; rank++) wrong += shared->wrong[rank];
        if (failed)
            fprintf(stderr, "nccl_ep: layout %s: a rank ended with %d\n", by_rank ? "rank" : "expert", failed);
        else
            printf("%s,%d,%d,%d,%d,%d,bf16,%d,%.2f,%.2f,%ld\n", by_rank ? "rank" : "expert", of.ranks, of.tokens, of.hidden, of.topk, of.experts,
                   of.rounds, median(shared, of, 0), median(shared, of, 1), wrong);
        fflush(stdout);
    }
    return 0;
}
