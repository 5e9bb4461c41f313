// Prints fields and bytes of the queues of an EFA device, set only through the structs and masks of HEADER. See efa-vectors.sh.
#include <stdio.h>
#include <string.h>

#define BIT(nr) (1UL << (nr))
#define GENMASK(h, l) ((~0UL << (l)) & (~0UL >> (63 - (h))))
#include HEADER

#define SET(field, mask, value) ((field) |= ((uint64_t)(value) << __builtin_ctzl(mask)) & (mask))

static uint64_t state = 1;
static uint64_t any(void) {
    state = state * 6364136223846793005UL + 1442695040888963407UL;
    return state ^ state >> 29;
}
static void hex(const void *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) printf("%02x", ((const uint8_t *)bytes)[i]);
    printf("\n");
}

struct local { uint64_t address; uint32_t length, key; };
static struct local local(void) {
    return (struct local){any(), (uint32_t)any() & 0x3fffffff, (uint32_t)any() & 0xffffff};
}
static void fill(struct efa_io_tx_buf_desc *piece, struct local local) {
    piece->length = local.length;
    SET(piece->lkey, EFA_IO_TX_BUF_DESC_LKEY_MASK, local.key);
    piece->buf_addr_lo = (uint32_t)local.address;
    piece->buf_addr_hi = local.address >> 32;
    printf("local=%lx,%x,%x ", local.address, local.length, local.key);
}

enum shape { SEND, SEND_TWO, SEND_INLINE, WRITE, WRITE_INLINE, READ, SHAPES };
static const char *names[] = {"send", "send-two", "send-inline", "write", "write-inline", "read"};

// A request in the slot of count `pc`; phase as rdma-core counts it, a step with each lap.
static void request(enum shape shape, int wide, int immediate, int long_id, uint32_t pc, unsigned phase, uint32_t depth) {
    union { struct efa_io_tx_wqe small; struct efa_io_tx_wqe_128 wide; uint8_t bytes[128]; } slot;
    memset(&slot, 0, sizeof slot);
    struct efa_io_tx_meta_desc *meta = &slot.small.meta;
    uint64_t id = long_id ? any() : any() & 0xffff;
    uint8_t data[80] = {0};
    unsigned room = wide ? EFA_IO_TX_DESC_INLINE_MAX_SIZE_128 : EFA_IO_TX_DESC_INLINE_MAX_SIZE, carried = 0;
    printf("request size=%d op=%s count=%u depth=%u ", wide ? 128 : 64, names[shape], pc, depth);
    SET(meta->ctrl1, EFA_IO_TX_META_DESC_META_DESC_MASK, 1);
    SET(meta->ctrl1, EFA_IO_TX_META_DESC_OP_TYPE_MASK, shape <= SEND_INLINE ? EFA_IO_SEND : shape == READ ? EFA_IO_RDMA_READ : EFA_IO_RDMA_WRITE);
    SET(meta->ctrl2, EFA_IO_TX_META_DESC_PHASE_MASK, phase & 1);
    SET(meta->ctrl2, EFA_IO_TX_META_DESC_FIRST_MASK, 1);
    SET(meta->ctrl2, EFA_IO_TX_META_DESC_LAST_MASK, 1);
    SET(meta->ctrl2, EFA_IO_TX_META_DESC_COMP_REQ_MASK, 1);
    meta->req_id = (uint16_t)id;
    for (int i = 0; i < 3; i++) meta->req_id_ex.w[i] = (uint16_t)(id >> (16 + 16 * i));
    meta->dest_qp_num = (uint16_t)any();
    meta->ah = (uint16_t)any();
    meta->qkey = (uint32_t)any();
    unsigned hints = any() & 1;
    SET(meta->ctrl3, EFA_IO_TX_META_DESC_PROCESSING_HINTS_MASK, hints);
    printf("id=%lx pair=%x handle=%x qkey=%x hints=%x ", id, meta->dest_qp_num, meta->ah, meta->qkey, hints);
    if (immediate) {
        meta->immediate_data = (uint32_t)any();
        SET(meta->ctrl1, EFA_IO_TX_META_DESC_HAS_IMM_MASK, 1);
        printf("immediate=%x ", meta->immediate_data);
    }
    if (shape == SEND_INLINE || shape == WRITE_INLINE) {
        carried = any() % (room + 1);
        for (unsigned i = 0; i < carried; i++) data[i] = (uint8_t)any();
        meta->length = (uint16_t)carried;
        SET(meta->ctrl1, EFA_IO_TX_META_DESC_INLINE_MSG_MASK, 1);
        memcpy(shape == WRITE_INLINE ? slot.wide.data.rdma_req.inline_data : wide ? slot.wide.data.inline_data : slot.small.data.inline_data, data, carried);
        printf("carried=%u,", carried);
        for (unsigned i = 0; i < 80; i++) printf("%02x", data[i]);
        printf(" ");
    } else {
        meta->length = shape == SEND_TWO ? 2 : 1;
    }
    if (shape == SEND || shape == SEND_TWO)
        for (int i = 0; i < meta->length; i++) fill(&slot.small.data.sgl[i], local());
    if (shape >= WRITE) {
        struct efa_io_remote_mem_addr *there = &slot.small.data.rdma_req.remote_mem;
        uint64_t address = any();
        there->length = carried;
        if (shape != WRITE_INLINE) {
            struct local bytes = local();
            fill(&slot.small.data.rdma_req.local_mem[0], bytes);
            there->length = bytes.length;
        }
        there->rkey = (uint32_t)any();
        there->buf_addr_lo = (uint32_t)address;
        there->buf_addr_hi = address >> 32;
        printf("remote=%lx,%x,%x ", address, there->length, there->rkey);
    }
    printf("bytes=");
    hex(&slot, wide ? 128 : 64);
}

// A queue that is filled and rung in batches, through its laps and through the ends of 16 bits and 32.
static void queue(uint32_t depth, uint32_t batch, uint32_t start, uint32_t requests) {
    uint32_t pc = start, pending = 0;
    unsigned phase = start / depth;
    for (uint32_t i = 0; i < requests; i++) {
        enum shape shape = i % SHAPES;
        request(shape, shape == WRITE_INLINE || i / SHAPES % 2, i / 5 % 2, i / 7 % 2, pc, phase, depth);
        pc++;
        if (!(pc & (depth - 1))) phase++;
        if (++pending == batch || i + 1 == requests) {
            printf("doorbell count=%u short=%x long=%x\n", pc, (uint16_t)pc, pc);
            pending = 0;
        }
    }
}

static void receive(void) {
    struct efa_io_rx_desc piece;
    memset(&piece, 0, sizeof piece);
    uint64_t address = any();
    unsigned first = any() & 1, last = any() & 1, key = any() & 0xffffff;
    piece.buf_addr_lo = (uint32_t)address;
    piece.buf_addr_hi = address >> 32;
    piece.req_id = (uint16_t)any();
    piece.length = (uint16_t)any();
    SET(piece.lkey_ctrl, EFA_IO_RX_DESC_LKEY_MASK, key);
    SET(piece.lkey_ctrl, EFA_IO_RX_DESC_FIRST_MASK, first);
    SET(piece.lkey_ctrl, EFA_IO_RX_DESC_LAST_MASK, last);
    printf("receive id=%x local=%lx,%x,%x first=%x last=%x bytes=", piece.req_id, address, piece.length, key, first, last);
    hex(&piece, sizeof piece);
}

static void completion(int index, unsigned status) {
    union { struct efa_io_tx_cdesc sent; struct efa_io_rx_cdesc arrived; struct efa_io_rx_cdesc_ex extended; uint8_t bytes[32]; } slot;
    memset(&slot, 0, sizeof slot);
    struct efa_io_cdesc_common *common = &slot.sent.common;
    unsigned phase = index & 1, arrival = index >> 1 & 1, op = index % 3;
    common->req_id = (uint16_t)any();
    common->status = (uint8_t)status;
    common->qp_num = (uint16_t)any();
    SET(common->flags, EFA_IO_CDESC_COMMON_PHASE_MASK, phase);
    SET(common->flags, EFA_IO_CDESC_COMMON_Q_TYPE_MASK, arrival ? EFA_IO_RECV_QUEUE : EFA_IO_SEND_QUEUE);
    printf("completion queue=%s phase=%x status=%u pair=%x ", arrival ? "receive" : "send", phase, status, common->qp_num);
    if (!arrival) {
        uint64_t id = common->req_id | any() << 16;
        SET(common->flags, EFA_IO_CDESC_COMMON_OP_TYPE_MASK, op);
        for (int i = 0; i < 3; i++) slot.sent.req_id_ex.w[i] = (uint16_t)(id >> (16 + 16 * i));
        printf("operation=%u id=%lx bytes=", op, id);
        hex(&slot, sizeof slot.sent);
        return;
    }
    op = index >> 2 & 1 ? EFA_IO_RDMA_WRITE : EFA_IO_SEND;
    unsigned has = op == EFA_IO_RDMA_WRITE || (any() & 1), unsolicited = op == EFA_IO_RDMA_WRITE && (any() & 1);
    uint32_t length = op == EFA_IO_RDMA_WRITE ? (uint32_t)any() : (uint32_t)any() & 0xffff;
    SET(common->flags, EFA_IO_CDESC_COMMON_OP_TYPE_MASK, op);
    SET(common->flags, EFA_IO_CDESC_COMMON_HAS_IMM_MASK, has);
    SET(common->flags, EFA_IO_CDESC_COMMON_UNSOLICITED_MASK, unsolicited);
    slot.arrived.length = (uint16_t)length;
    slot.arrived.ah = (uint16_t)any();
    slot.arrived.src_qp_num = (uint16_t)any();
    if (has) slot.arrived.imm = (uint32_t)any();
    if (op == EFA_IO_RDMA_WRITE) slot.extended.u.rdma_write.length_hi = length >> 16;
    printf("operation=%u id=%x length=%x handle=%x source=%x unsolicited=%x ", op, common->req_id, length, slot.arrived.ah,
           slot.arrived.src_qp_num, unsolicited);
    if (has) printf("immediate=%x ", slot.arrived.imm);
    printf("bytes=");
    hex(&slot, sizeof slot);
}

int main(void) {
    queue(4, 1, 0, 24);
    queue(16, 5, 0, 80);
    queue(4096, 32, 65536 - 48, 96);
    queue(32768, 64, 0u - 40, 80);
    for (int i = 0; i < 16; i++) receive();
    static const unsigned statuses[] = {
        EFA_IO_COMP_STATUS_OK, EFA_IO_COMP_STATUS_FLUSHED, EFA_IO_COMP_STATUS_LOCAL_ERROR_QP_INTERNAL_ERROR,
        EFA_IO_COMP_STATUS_LOCAL_ERROR_UNSUPPORTED_OP, EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_AH,
        EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_LKEY, EFA_IO_COMP_STATUS_LOCAL_ERROR_BAD_LENGTH,
        EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_ADDRESS, EFA_IO_COMP_STATUS_REMOTE_ERROR_ABORT,
        EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_DEST_QPN, EFA_IO_COMP_STATUS_REMOTE_ERROR_RNR,
        EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_LENGTH, EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_STATUS,
        EFA_IO_COMP_STATUS_LOCAL_ERROR_UNRESP_REMOTE, EFA_IO_COMP_STATUS_REMOTE_ERROR_UNKNOWN_PEER,
        EFA_IO_COMP_STATUS_LOCAL_ERROR_UNREACH_REMOTE, EFA_IO_COMP_STATUS_REMOTE_ERROR_FEATURE_MISMATCH};
    for (int i = 0; i < 64; i++) completion(i, statuses[i % (sizeof statuses / sizeof *statuses)]);
    // By name, so that a number that moves is seen.
    printf("statuses local-key=%d remote-address=%d receiver-not-ready=%d unreachable=%d feature-mismatch=%d\n",
           EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_LKEY, EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_ADDRESS,
           EFA_IO_COMP_STATUS_REMOTE_ERROR_RNR, EFA_IO_COMP_STATUS_LOCAL_ERROR_UNREACH_REMOTE,
           EFA_IO_COMP_STATUS_REMOTE_ERROR_FEATURE_MISMATCH);
    return 0;
}
