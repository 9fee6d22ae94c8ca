/* Two processes of OpenSHMEM put into and get from each other's memory, and look at every byte of
   it: those of the message, and those in front of it and behind it. */
#include <shmem.h>
#include <stdio.h>
#include <string.h>

enum { MAX_BYTES = 1 << 20, MARGIN = 4096, UNTOUCHED = 0xa5, ADDS = 200 };

static unsigned char expected(int from, int size, int at) {
    return (unsigned char)(from * 101 + size * 7 + at * 13 + (at >> 8));
}

/* How many bytes of a window differ from a message of `size` bytes at `start`, untouched around. */
static int differing(const unsigned char *window, int start, int from, int size) {
    int wrong = 0;
    for (int at = 0; at < MAX_BYTES + 2 * MARGIN; at++) {
        int inside = at >= start && at < start + size;
        wrong += window[at] != (inside ? expected(from, size, at - start) : UNTOUCHED);
    }
    return wrong;
}

int main(void) {
    static long sum, largest, wrong, all, work[SHMEM_REDUCE_MIN_WRKDATA_SIZE];
    static long sync[SHMEM_REDUCE_SYNC_SIZE];
    shmem_init();
    int me = shmem_my_pe(), peer = 1 - me;
    size_t whole = MAX_BYTES + 2 * MARGIN;
    unsigned char *window = shmem_malloc(whole), *own = shmem_malloc(whole);
    if (shmem_n_pes() != 2 || !window || !own)
        shmem_global_exit(2);
    for (int i = 0; i < SHMEM_REDUCE_SYNC_SIZE; i++)
        sync[i] = SHMEM_SYNC_VALUE;
    for (int size = 1; size <= MAX_BYTES; size *= 4) {
        /* An odd start too: pages, lines and operands of atomics do not hide a shift. */
        int start = MARGIN + size % 3;
        for (int at = 0; at < size; at++)
            own[at] = expected(me, size, at);
        memset(window, UNTOUCHED, whole);
        shmem_barrier_all();
        shmem_putmem(window + start, own, size, peer);
        shmem_barrier_all();
        wrong += differing(window, start, peer, size);
        memset(window, UNTOUCHED, whole);
        shmem_getmem(window + start, own, size, peer);
        wrong += differing(window, start, peer, size);
        shmem_barrier_all();
    }
    for (long i = 1; i <= ADDS; i++) {
        shmem_long_atomic_add(&sum, i, 0);
        long seen = shmem_long_atomic_fetch(&largest, 0), next = me * ADDS + i;
        while (seen < next) {
            long before = shmem_long_atomic_compare_swap(&largest, seen, next, 0);
            if (before == seen)
                break;
            seen = before;
        }
    }
    shmem_barrier_all();
    if (me == 0)
        wrong += sum != ADDS * (ADDS + 1) || largest != 2 * ADDS;
    shmem_barrier_all();
    shmem_long_sum_to_all(&all, &wrong, 1, 0, 0, 2, work, sync);
    if (me == 0)
        printf("%ld wrong\n", all);
    shmem_finalize();
    return all != 0;
}
