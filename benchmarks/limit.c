/* The limit that loaders.py holds loaders against: libjpeg-turbo on every processor and nothing else.
 *
 * Compiled behind decoders/libjpeg.c, whose functions it uses: the same crops, decoded from memory; with `resized`
 * they are resized as well. No file is read, nothing is handed over, Python does not run.
 */
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

typedef struct {
    const recipe *r;
    const uint8_t *const *data;
    const int64_t *sizes;
    int num, worker, num_workers, resized;
    double seconds;
    int64_t count, begun_ns, ended_ns; /* count < 0: a picture could not be decoded */
} share;

static int one(maker *m, const share *s, int i, int64_t epoch, uint8_t *out) {
    report told;
    if (s->resized) return make_one(m, s->r, s->data[i], (size_t)s->sizes[i], epoch, i, out, &told);
    if (setjmp(m->failed)) return failed(m, &told, BROKEN);
    sample wanted = {0};
    choose_sample(m, s->r, s->data[i], (size_t)s->sizes[i], epoch, i, &wanted);
    int num = wanted.down.end - start(m, &wanted);
    size_t step = row_step(m);
    read_rows(m, room_for(m, &m->pixels, (size_t)num * step), step, num);
    jpeg_abort_decompress(&m->jpeg);
    return MADE;
}

static void *work(void *given) {
    share *s = given;
    maker *m = lb_new();
    uint8_t *out = malloc((size_t)s->r->height * s->r->width * CHANNELS);
    if (m == NULL || out == NULL) abort();
    s->begun_ns = now_ns();
    int64_t deadline = s->begun_ns + (int64_t)(s->seconds * 1e9);
    for (int64_t i = s->worker; s->count >= 0 && now_ns() < deadline; i += s->num_workers)
        s->count = one(m, s, (int)(i % s->num), i / s->num, out) ? -1 : s->count + 1;
    s->ended_ns = now_ns();
    free(out);
    lb_free(m);
    return NULL;
}

/* Images a second of `num_workers` threads (or processes) in about `seconds`; -1 where one could not be decoded. */
double lb_limit(const recipe *r, int num, const uint8_t *const *data, const int64_t *sizes, int num_workers,
                int processes, int resized, double seconds) {
    size_t room = sizeof(share) * (size_t)num_workers;
    share *shares = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_t threads[num_workers];
    pid_t children[num_workers];
    for (int i = 0; i < num_workers; i++) {
        shares[i] = (share){r, data, sizes, num, i, num_workers, resized, seconds, 0, 0, 0};
        int failed = processes ? (children[i] = fork()) < 0 : pthread_create(&threads[i], NULL, work, &shares[i]);
        if (failed) abort();
        if (processes && children[i] == 0) {
            work(&shares[i]);
            _exit(0);
        }
    }
    double rate = 0;
    for (int i = 0; i < num_workers; i++) {
        if (processes) waitpid(children[i], NULL, 0);
        else pthread_join(threads[i], NULL);
        if (shares[i].count < 0) rate = -1;
        if (rate >= 0) rate += (double)shares[i].count / (double)(shares[i].ended_ns - shares[i].begun_ns) * 1e9;
    }
    munmap(shares, room);
    return rate;
}
