// Replaces libfabric, only for tests/gpu_memory.rs: forwards to the machine's own libfabric, whose providers then claim
// to support GPU memory (FI_HMEM), as its efa provider does with CUDA from interface 1.18 on. "GPU memory" is host
// memory declared as a GPU's.
// HMEM_DOUBLE_OF names the libfabric below. HMEM_DOUBLE specifies how the claim is fulfilled:
//     copies     only by copying: CUDA calls cannot be forbidden for an endpoint, and a registration does not reach
//                the NIC
//     lies       like copies, but the endpoint reports that CUDA calls are forbidden
//     registers  the NIC registers the memory
//     secret     like registers, but each write of the region that was registered first takes as long as copies by CUDA
//                calls would (20 ms): a provider that has agreed to make none and copies nevertheless

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define OPT_CUDA_API_PERMITTED 10 /* FI_OPT_CUDA_API_PERMITTED; headers have it from 1.18 on */
#define CLAIMED FI_VERSION(2, 1)

static void *below(const char *name, const char *version) {
    static void *handle;
    if (!handle)
        handle = dlopen(getenv("HMEM_DOUBLE_OF"), RTLD_NOW | RTLD_LOCAL);
    void *found = handle ? dlvsym(handle, name, version) : NULL;
    if (!found) {
        fprintf(stderr, "hmem_double: no %s: %s\n", name, dlerror());
        abort();
    }
    return found;
}

static bool is(const char *mode) {
    const char *asked = getenv("HMEM_DOUBLE");
    return asked && !strcmp(asked, mode);
}

uint32_t fi_version(void) { return CLAIMED; }

int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
               struct fi_info **info) {
    int (*real)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **) =
        below("fi_getinfo", "FABRIC_1.3");
    uint32_t (*real_version)(void) = below("fi_version", "FABRIC_1.0");
    struct fi_info plain;
    struct fi_domain_attr domain;
    bool claim = hints && (hints->caps & FI_HMEM);
    if (claim) {
        plain = *hints, domain = *hints->domain_attr;
        plain.caps &= ~FI_HMEM, domain.mr_mode &= ~FI_MR_HMEM;
        plain.domain_attr = &domain, hints = &plain;
    }
    int code = real(version < real_version() ? version : real_version(), node, service, flags, hints, info);
    for (struct fi_info *entry = claim && !code ? *info : NULL; entry; entry = entry->next)
        entry->caps |= FI_HMEM, entry->domain_attr->mr_mode |= FI_MR_HMEM;
    return code;
}

void fi_freeinfo(struct fi_info *info) { ((void (*)(struct fi_info *))below("fi_freeinfo", "FABRIC_1.3"))(info); }

struct fi_info *fi_dupinfo(const struct fi_info *info) {
    return ((struct fi_info *(*)(const struct fi_info *))below("fi_dupinfo", "FABRIC_1.3"))(info);
}

const char *fi_strerror(int code) { return ((const char *(*)(int))below("fi_strerror", "FABRIC_1.0"))(code); }

char *fi_tostr_r(char *buffer, size_t length, const void *data, enum fi_type type) {
    return ((char *(*)(char *, size_t, const void *, enum fi_type))below("fi_tostr_r", "FABRIC_1.4"))(buffer, length, data, type);
}

// Returns the entry for the provider below, without the claim.
static struct fi_info *without(struct fi_info *info) {
    struct fi_info *plain = fi_dupinfo(info);
    plain->caps &= ~FI_HMEM, plain->domain_attr->mr_mode &= ~FI_MR_HMEM;
    return plain;
}

static int closed(struct fid *fid) {
    free(fid);
    return 0;
}

static void *copied; // descriptor of the region that `secret` copies

static int (*real_regattr)(struct fid *, const struct fi_mr_attr *, uint64_t, struct fid_mr **);

static int regattr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags, struct fid_mr **mr) {
    struct fi_mr_attr host = *attr;
    if (attr->iface != FI_HMEM_CUDA || is("registers") || is("secret")) {
        host.iface = FI_HMEM_SYSTEM, host.device.reserved = 0;
        int code = real_regattr(fid, &host, flags, mr);
        if (!code && is("secret") && !copied)
            copied = fi_mr_desc(*mr);
        return code;
    }
    // Like efa without GPUDirect: a key that no NIC has, and no registration.
    static struct fi_ops ops = {.size = sizeof(ops), .close = closed};
    static uint64_t key = 0x100000000ull;
    *mr = calloc(1, sizeof(**mr));
    (*mr)->fid.ops = &ops, (*mr)->mem_desc = *mr, (*mr)->key = key++;
    return 0;
}

static int (*real_setopt)(struct fid *, int, int, const void *, size_t);

static int setopt(struct fid *fid, int level, int name, const void *value, size_t length) {
    if (name != OPT_CUDA_API_PERMITTED)
        return real_setopt(fid, level, name, value, length);
    if (length != sizeof(bool))
        return -FI_EINVAL;
    return *(const bool *)value || !is("copies") ? 0 : -FI_EOPNOTSUPP;
}

static void copy(void *descriptor) {
    struct timespec start, now;
    if (!copied || descriptor != copied)
        return;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - start.tv_sec) * 1000000000 + now.tv_nsec - start.tv_nsec < 20000000);
}

static struct fi_ops_rma real_rma;

static ssize_t write_one(struct fid_ep *ep, const void *from, size_t length, void *descriptor, fi_addr_t to, uint64_t at, uint64_t key,
                         void *context) {
    copy(descriptor);
    return real_rma.write(ep, from, length, descriptor, to, at, key, context);
}

static ssize_t write_message(struct fid_ep *ep, const struct fi_msg_rma *message, uint64_t flags) {
    copy(message->desc ? message->desc[0] : NULL);
    return real_rma.writemsg(ep, message, flags);
}

static int (*real_endpoint)(struct fid_domain *, struct fi_info *, struct fid_ep **, void *);

static int endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context) {
    static struct fi_ops_ep ops;
    struct fi_info *plain = without(info);
    int code = real_endpoint(domain, plain, ep, context);
    fi_freeinfo(plain);
    if (!code) {
        real_setopt = (*ep)->ops->setopt, ops = *(*ep)->ops;
        ops.setopt = setopt, (*ep)->ops = &ops;
        static struct fi_ops_rma rma;
        real_rma = *(*ep)->rma, rma = real_rma;
        rma.write = write_one, rma.writemsg = write_message, (*ep)->rma = &rma;
    }
    return code;
}

static int (*real_domain)(struct fid_fabric *, struct fi_info *, struct fid_domain **, void *);

static int domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **made, void *context) {
    static struct fi_ops_domain ops;
    static struct fi_ops_mr mr;
    struct fi_info *plain = without(info);
    int code = real_domain(fabric, plain, made, context);
    fi_freeinfo(plain);
    if (!code) {
        real_endpoint = (*made)->ops->endpoint, ops = *(*made)->ops;
        ops.endpoint = endpoint, (*made)->ops = &ops;
        real_regattr = (*made)->mr->regattr, mr = *(*made)->mr;
        mr.regattr = regattr, (*made)->mr = &mr;
    }
    return code;
}

int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context) {
    static struct fi_ops_fabric ops;
    int (*real)(struct fi_fabric_attr *, struct fid_fabric **, void *) = below("fi_fabric", "FABRIC_1.1");
    int code = real(attr, fabric, context);
    // The provider may cache the object and return it again, so its table is replaced only once.
    if (!code && (*fabric)->ops != &ops) {
        real_domain = (*fabric)->ops->domain, ops = *(*fabric)->ops;
        ops.domain = domain, (*fabric)->ops = &ops;
    }
    return code;
}
