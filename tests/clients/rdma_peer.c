/* A peer on libibverbs for the example `verbs_peer` of verbless-doca: an RC connection over which each side does all
 * operations of DOCA RDMA to the other. It makes and reads connection descriptors and export descriptors by what the
 * documentation of `verbless_doca::rdma` and `verbless_doca::memory::export` says of them.
 *
 * rdma_peer PORT [DEVICE [GID_INDEX]]: connects to 127.0.0.1:PORT. Exit code 0 if all was as it should be. */
#include <arpa/inet.h>
#include <endian.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "rdma_peer: %s:%d: not so: %s\n", __FILE__, __LINE__, #what);                              \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum {
    CONNECTION = 68,
    EXPORT = 60,
    ADDRESS_AT = 32,
    /* DOCA's access flags. */
    LOCAL_READ_WRITE = 1,
    RDMA_READ = 2,
    RDMA_WRITE = 4,
    RDMA_ATOMIC = 8,
    /* The memory of each side: a word, and where messages, writes and reads go. */
    BYTES = 8192,
    WORD_AT = 0,
    WRITE_AT = 1024,
    WRITE_IMM_AT = 2048,
    READ_AT = 3072,
    LOCAL_AT = 4096,
    RECEIVE_AT = 6144,
};

/* SHA-256 (FIPS 180-4). */
static uint32_t turned(uint32_t word, int by) { return word >> by | word << (32 - by); }

static void sha256(const uint8_t *bytes, size_t length, uint8_t digest[32]) {
    static const uint32_t constants[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
    };
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint8_t message[192] = {0};
    size_t blocks = (length + 9 + 63) / 64;
    CHECK(blocks * 64 <= sizeof message);
    memcpy(message, bytes, length);
    message[length] = 0x80;
    uint64_t bits = htobe64(length * 8);
    memcpy(message + blocks * 64 - 8, &bits, 8);
    for (size_t block = 0; block < blocks; block++) {
        uint32_t w[64], s[8];
        for (int i = 0; i < 16; i++) {
            memcpy(&w[i], message + block * 64 + i * 4, 4);
            w[i] = be32toh(w[i]);
        }
        for (int i = 16; i < 64; i++) {
            uint32_t a = turned(w[i - 15], 7) ^ turned(w[i - 15], 18) ^ w[i - 15] >> 3;
            uint32_t b = turned(w[i - 2], 17) ^ turned(w[i - 2], 19) ^ w[i - 2] >> 10;
            w[i] = w[i - 16] + a + w[i - 7] + b;
        }
        memcpy(s, state, sizeof s);
        for (int i = 0; i < 64; i++) {
            uint32_t e = turned(s[4], 6) ^ turned(s[4], 11) ^ turned(s[4], 25);
            uint32_t chosen = (s[4] & s[5]) ^ (~s[4] & s[6]);
            uint32_t first = s[7] + e + chosen + constants[i] + w[i];
            uint32_t a = turned(s[0], 2) ^ turned(s[0], 13) ^ turned(s[0], 22);
            uint32_t second = a + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
            memmove(s + 1, s, 7 * sizeof *s);
            s[4] += first;
            s[0] = first + second;
        }
        for (int i = 0; i < 8; i++)
            state[i] += s[i];
    }
    for (int i = 0; i < 8; i++) {
        uint32_t word = htobe32(state[i]);
        memcpy(digest + 4 * i, &word, 4);
    }
}

/* Messages: four bytes of length, then so many bytes. */
static int peer;

static void all_of(int writes, void *bytes, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t now = writes ? write(peer, (char *)bytes + done, length - done) : read(peer, (char *)bytes + done, length - done);
        CHECK(now > 0);
        done += now;
    }
}

static void tell(const void *bytes, uint32_t length) {
    uint8_t message[4 + 256];
    uint32_t count = htonl(length);
    CHECK(length <= 256);
    memcpy(message, &count, 4);
    memcpy(message + 4, bytes, length);
    all_of(1, message, 4 + length);
}

static void hear(void *bytes, uint32_t length) {
    uint32_t count;
    all_of(0, &count, 4);
    CHECK(ntohl(count) == length);
    all_of(0, bytes, length);
}

/* Both sides are as far as this. */
static void meet(void) {
    uint8_t step = 'x', other;
    tell(&step, 1);
    hear(&other, 1);
    CHECK(other == 'x');
}

static void put(uint8_t *at, uint64_t value, int bytes) {
    for (int i = bytes; i-- > 0; value >>= 8)
        at[i] = value;
}

static uint64_t get(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value = value << 8 | at[i];
    return value;
}

static void seal(uint8_t *descriptor, size_t length) {
    uint8_t digest[32];
    sha256(descriptor, length - 8, digest);
    memcpy(descriptor + length - 8, digest, 8);
}

static void is_sealed(const uint8_t *descriptor, size_t length) {
    uint8_t digest[32];
    sha256(descriptor, length - 8, digest);
    CHECK(memcmp(descriptor + length - 8, digest, 8) == 0);
}

static uint8_t memory[BYTES] __attribute__((aligned(4096)));
static struct ibv_qp *qp;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct {
    uint64_t address;
    uint32_t rkey;
} there;

static uint8_t pattern(int seed, int at) { return (uint8_t)(seed * 31 + at * 7 + (at >> 8)); }

static void fill(int at, int length, int seed) {
    for (int i = 0; i < length; i++)
        memory[at + i] = pattern(seed, i);
}

static void holds(int at, int length, int seed) {
    for (int i = 0; i < length; i++)
        CHECK(memory[at + i] == pattern(seed, i));
}

static uint64_t word(void) {
    uint64_t value;
    memcpy(&value, memory + WORD_AT, 8);
    return value;
}

static void set_word(uint64_t value) { memcpy(memory + WORD_AT, &value, 8); }

static struct ibv_wc completion(enum ibv_wc_opcode opcode) {
    struct ibv_wc wc;
    time_t end = time(NULL) + 60;
    int count;
    while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
        CHECK(time(NULL) < end);
    CHECK(count == 1);
    if (wc.status != IBV_WC_SUCCESS)
        fprintf(stderr, "rdma_peer: %s\n", ibv_wc_status_str(wc.status));
    CHECK(wc.status == IBV_WC_SUCCESS);
    CHECK(wc.opcode == opcode);
    return wc;
}

static void receive(int length) {
    struct ibv_sge sge = {.addr = (uintptr_t)memory + RECEIVE_AT, .length = length, .lkey = mr->lkey};
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = length > 0}, *bad;
    CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

static void post(struct ibv_send_wr *wr, int length, enum ibv_wc_opcode done) {
    struct ibv_sge sge = {.addr = (uintptr_t)memory + LOCAL_AT, .length = length, .lkey = mr->lkey};
    struct ibv_send_wr *bad;
    wr->sg_list = &sge;
    wr->num_sge = 1;
    wr->send_flags = IBV_SEND_SIGNALED;
    CHECK(ibv_post_send(qp, wr, &bad) == 0);
    completion(done);
}

static void write_to(enum ibv_wr_opcode opcode, int at, int length, uint32_t immediate) {
    struct ibv_send_wr wr = {.opcode = opcode, .imm_data = htonl(immediate)};
    wr.wr.rdma.remote_addr = there.address + at;
    wr.wr.rdma.rkey = there.rkey;
    post(&wr, length, opcode == IBV_WR_RDMA_READ ? IBV_WC_RDMA_READ : IBV_WC_RDMA_WRITE);
}

static uint64_t atomic(enum ibv_wr_opcode opcode, uint64_t compare_add, uint64_t swap) {
    struct ibv_send_wr wr = {.opcode = opcode};
    uint64_t before;
    wr.wr.atomic.remote_addr = there.address + WORD_AT;
    wr.wr.atomic.rkey = there.rkey;
    wr.wr.atomic.compare_add = compare_add;
    wr.wr.atomic.swap = swap;
    post(&wr, 8, opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? IBV_WC_FETCH_ADD : IBV_WC_COMP_SWAP);
    memcpy(&before, memory + LOCAL_AT, 8);
    return before;
}

/* What the other side does to this one. */
static void serve(void) {
    struct ibv_wc wc;
    memset(memory, 0, sizeof memory);
    receive(1024), meet();
    wc = completion(IBV_WC_RECV);
    CHECK(wc.byte_len == 100 && !(wc.wc_flags & IBV_WC_WITH_IMM));
    holds(RECEIVE_AT, 100, 1);
    receive(1024), meet();
    wc = completion(IBV_WC_RECV);
    CHECK(wc.byte_len == 10 && (wc.wc_flags & IBV_WC_WITH_IMM) && ntohl(wc.imm_data) == 0xdeadbeef);
    holds(RECEIVE_AT, 10, 2);
    receive(0), meet();
    wc = completion(IBV_WC_RECV);
    CHECK(wc.byte_len == 0);
    meet(); /* The write is done. */
    holds(WRITE_AT, 200, 3);
    receive(0), meet();
    wc = completion(IBV_WC_RECV_RDMA_WITH_IMM);
    CHECK((wc.wc_flags & IBV_WC_WITH_IMM) && ntohl(wc.imm_data) == 0xcafef00d);
    holds(WRITE_IMM_AT, 50, 4);
    fill(READ_AT, 300, 5), set_word(40), meet();
    meet(); /* The read and the addition are done. */
    CHECK(word() == 42);
    meet();
    meet(); /* The swap is. */
    CHECK(word() == 7);
}

/* The same to the other side. */
static void act(void) {
    struct ibv_send_wr send = {.opcode = IBV_WR_SEND};
    memset(memory, 0, sizeof memory);
    fill(LOCAL_AT, 100, 1), meet();
    post(&send, 100, IBV_WC_SEND);
    meet();
    send = (struct ibv_send_wr){.opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl(0xdeadbeef)};
    fill(LOCAL_AT, 10, 2);
    post(&send, 10, IBV_WC_SEND);
    meet();
    send = (struct ibv_send_wr){.opcode = IBV_WR_SEND};
    post(&send, 0, IBV_WC_SEND);
    fill(LOCAL_AT, 200, 3);
    write_to(IBV_WR_RDMA_WRITE, WRITE_AT, 200, 0);
    meet();
    meet();
    fill(LOCAL_AT, 50, 4);
    write_to(IBV_WR_RDMA_WRITE_WITH_IMM, WRITE_IMM_AT, 50, 0xcafef00d);
    meet();
    memset(memory + LOCAL_AT, 0, 300);
    write_to(IBV_WR_RDMA_READ, READ_AT, 300, 0);
    holds(LOCAL_AT, 300, 5);
    CHECK(atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 2, 0) == 40);
    meet();
    meet();
    CHECK(atomic(IBV_WR_ATOMIC_CMP_AND_SWP, 42, 7) == 42);
    meet();
}

static struct ibv_context *opened(const char *name) {
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list && count > 0);
    int at = 0;
    while (at < count && strcmp(ibv_get_device_name(list[at]), name))
        at++;
    CHECK(at < count);
    struct ibv_context *context = ibv_open_device(list[at]);
    CHECK(context);
    ibv_free_device_list(list);
    return context;
}

int main(int argc, char **argv) {
    CHECK(argc >= 2);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    peer = socket(AF_INET, SOCK_STREAM, 0);
    for (int tries = 0; connect(peer, (struct sockaddr *)&to, sizeof to); tries++) {
        CHECK(tries < 600);
        usleep(50000);
        close(peer);
        peer = socket(AF_INET, SOCK_STREAM, 0);
    }
    struct ibv_context *context = opened(argc > 2 ? argv[2] : "mlx5_0");
    struct ibv_port_attr port;
    struct ibv_device_attr device;
    CHECK(ibv_query_port(context, 1, &port) == 0 && ibv_query_device(context, &device) == 0);
    int ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET, gid_index = argc > 3 ? atoi(argv[3]) : ethernet;
    union ibv_gid gid;
    CHECK(ibv_query_gid(context, 1, gid_index, &gid) == 0);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 64, NULL, NULL, 0);
    CHECK(pd && cq);
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    mr = ibv_reg_mr(pd, memory, BYTES, access);
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC};
    init.cap = (struct ibv_qp_cap){.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1};
    qp = ibv_create_qp(pd, &init);
    CHECK(mr && qp);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access};
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);

    uint32_t psn = getpid() & 0xffffff;
    uint8_t ours[CONNECTION] = "vbdr", theirs[CONNECTION];
    put(ours + 4, 1, 2);                                               /* version */
    put(ours + 6, 1, 1);                                               /* RC */
    put(ours + 8, CONNECTION, 4);                                      /* length */
    put(ours + 12, RDMA_READ | RDMA_WRITE | RDMA_ATOMIC, 4);           /* permissions */
    put(ours + 16, (uint64_t)time(NULL) << 32 | getpid(), 8);          /* a number that no other has */
    put(ours + ADDRESS_AT, 1ULL << 24 | qp->qp_num, 4);                /* version, QPN */
    put(ours + ADDRESS_AT + 4, (5U << 4 | ethernet << 1) << 24 | psn, 4); /* 16 reads, kind of port, PSN */
    put(ours + ADDRESS_AT + 8, ethernet ? 0 : port.lid, 2);
    put(ours + ADDRESS_AT + 11, port.active_mtu, 1);
    memcpy(ours + ADDRESS_AT + 12, &gid, 16);
    seal(ours, CONNECTION);
    tell(ours, CONNECTION);
    hear(theirs, CONNECTION);
    is_sealed(theirs, CONNECTION);
    CHECK(memcmp(theirs, "vbdr", 4) == 0);
    const uint8_t *address = theirs + ADDRESS_AT;
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = address[11] < port.active_mtu ? address[11] : port.active_mtu,
        .dest_qp_num = get(address + 1, 3),
        .rq_psn = get(address + 5, 3),
        .max_dest_rd_atomic = 16,
        .min_rnr_timer = 12,
        .ah_attr = {.dlid = get(address + 8, 2), .sl = address[10], .port_num = 1, .is_global = ethernet},
    };
    memcpy(&attr.ah_attr.grh.dgid, address + 12, 16);
    attr.ah_attr.grh.sgid_index = gid_index;
    attr.ah_attr.grh.hop_limit = 64;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .sq_psn = psn, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                       IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC) == 0);

    uint8_t map[EXPORT] = "vbdm", other[EXPORT];
    put(map + 4, 1, 2);
    put(map + 6, 1, 1); /* for RDMA */
    put(map + 8, EXPORT, 4);
    put(map + 12, LOCAL_READ_WRITE | RDMA_READ | RDMA_WRITE | RDMA_ATOMIC, 4);
    put(map + 16, be64toh(device.node_guid), 8);
    put(map + 24, be64toh(device.sys_image_guid), 8);
    put(map + 32, (uintptr_t)memory, 8);
    put(map + 40, BYTES, 8);
    put(map + 48, mr->rkey, 4);
    seal(map, EXPORT);
    tell(map, EXPORT);
    hear(other, EXPORT);
    is_sealed(other, EXPORT);
    CHECK(memcmp(other, "vbdm", 4) == 0 && get(other + 40, 8) == BYTES);
    there.address = get(other + 32, 8);
    there.rkey = get(other + 48, 4);
    meet();

    serve();
    act();
    printf("all operations in both directions\n");
    return 0;
}
