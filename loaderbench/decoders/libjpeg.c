/* Whole training samples from JPEG files: read, decode only what the crop needs, resize, mirror, write in place.
 *
 * Compiled on demand by libjpeg.py against libjpeg-turbo's own headers and called through ctypes, which lets go of
 * the GIL. Nothing here is global: one `maker` belongs to one thread. libjpeg reports errors by a callback, which
 * jumps back to the entry function; what it only warns about (damaged data) is an error here as well.
 *
 * The resize is Pillow's antialiased bilinear (triangle) filter with 8 bits between its passes, as Pillow has them; but
 * rows are blended first, as they are decoded. Both passes are one function that blends whole rows; for the horizontal
 * one they are transposed before and after. Every variant of the vector code gives the same pixels.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <jpeglib.h>
#include <jerror.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

enum { PAD = 64, BYTES = 16 }; /* what every row length is rounded up to; side of a transposed block */
enum { CHANNELS = 3, MARGIN = 2, ROWS = 16, CROP_TRIES = 10 };
/* MARGIN: columns and rows decoded before a region, and columns behind it, so that its border has the chroma neighbours
 * of the full picture. ROWS: decoded at once, as many as libjpeg does with halved colours. */
/* MOST_PIXELS, MOST_SCANNED_PIXELS, SCAN_BYTES: images/jpeg.py, given to the compiler. */
enum { MOST_HALVES = 64 }; /* pixels in a sum of halved products: what these lose is then known to 1/8 level */
enum { MOST_LIBJPEG_BYTES = 1 << 30 }; /* a progressive picture of MOST_PIXELS takes this much */

/* decoders/base.py: Stopped. */
enum status { MADE, BROKEN, FOREIGN_COLOURS, UNREADABLE, WRONG_SIZE, NO_MEMORY };

typedef struct {
    double crop_scale[2], log_ratio[2], crop_ratio[2], flip_probability;
    uint64_t seed;
    int32_t train;               /* random crop and flip; else shorter side to `short_side`, then the centre */
    int32_t whole;               /* the stored picture, not resized; all are height × width */
    int32_t short_side;
    int32_t height, width;       /* of a sample */
    int32_t scale;               /* decode at the smallest of 1/8, 1/4, 1/2 that is not below the sample's size */
    int32_t evict;               /* drop a file's pages from the page cache once it was read */
} recipe;

typedef struct {
    int64_t read_ns, read_cpu_ns, read_queue_ns, decode_ns, augment_ns, encoded_bytes, page_bytes; /* of all begun */
    int32_t status, error_number, height, width;                      /* of the image that was not made */
    char message[JMSG_LENGTH_MAX];
} report;

typedef struct { int top, left, height, width, resized_height, resized_width, window_top, window_left, flip; } geometry;

typedef struct { uint8_t *bytes; size_t room; } buffer;

typedef struct {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    jmp_buf failed;
    char message[JMSG_LENGTH_MAX];
    int64_t asked_ns;
    int run_queue;               /* /proc/thread-self/schedstat; 0: not opened yet */
    int reads_wait;              /* the last file took WAITING_READ_NS (recording/facts.py, given to the compiler) */
    buffer file, pixels, lowered, columns, resized, turned, taps[2];
} maker;

/* -- time ------------------------------------------------------------------------------------------- */

static int64_t ns_of(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int64_t now_ns(void) { return ns_of(CLOCK_MONOTONIC); }

/* Since this was asked before. */
static int64_t ns_since(maker *m) {
    int64_t before = m->asked_ns;
    m->asked_ns = now_ns();
    return m->asked_ns - before;
}

/* -- errors ------------------------------------------------------------------------------------------- */

static void on_error(j_common_ptr jpeg) {
    maker *m = (maker *)jpeg->client_data;
    jpeg->err->format_message(jpeg, m->message);
    longjmp(m->failed, BROKEN);
}

static void on_message(j_common_ptr jpeg, int level) {
    /* Stray bytes between two markers belong to nothing, and every viewer skips them. */
    if (level < 0 && jpeg->err->msg_code != JWRN_EXTRANEOUS_DATA) on_error(jpeg);
}

static void fail(maker *m, int status, const char *why) {
    snprintf(m->message, sizeof m->message, "%s", why);
    longjmp(m->failed, status);
}

static uint8_t *room_for(maker *m, buffer *b, size_t size) {
    if (b->room < size) {
        free(b->bytes);
        b->room = 0;
        b->bytes = NULL;
        if (posix_memalign((void **)&b->bytes, 64, size + size / 4 + 64)) {
            b->bytes = NULL;
            fail(m, NO_MEMORY, "out of memory");
        }
        b->room = size + size / 4;
    }
    return b->bytes;
}

/* -- the crop: transform.py, number by number --------------------------------------------------------- */

static const uint64_t GOLDEN = 0x9E3779B97F4A7C15u;

static uint64_t mix(uint64_t state) {
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
    state = (state ^ (state >> 27)) * 0x94D049BB133111EBu;
    return state ^ (state >> 31);
}

static double uniform(uint64_t *state) {
    *state += GOLDEN;
    return (double)(mix(*state) >> 11) * 0x1p-53;
}

static geometry random_crop(const recipe *r, int height, int width, uint64_t *random) {
    double area = (double)height * width;
    for (int i = 0; i < CROP_TRIES; i++) {
        double target = area * (r->crop_scale[0] + (r->crop_scale[1] - r->crop_scale[0]) * uniform(random));
        double ratio = exp(r->log_ratio[0] + (r->log_ratio[1] - r->log_ratio[0]) * uniform(random));
        int crop_width = (int)rint(sqrt(target * ratio)), crop_height = (int)rint(sqrt(target / ratio));
        if (0 < crop_width && crop_width <= width && 0 < crop_height && crop_height <= height) {
            int top = (int)(uniform(random) * (height - crop_height + 1));
            int left = (int)(uniform(random) * (width - crop_width + 1));
            return (geometry){.top = top, .left = left, .height = crop_height, .width = crop_width};
        }
    }
    geometry g = {.height = height, .width = width};
    if ((double)width / height < r->crop_ratio[0]) g.height = (int)rint(width / r->crop_ratio[0]);
    else if ((double)width / height > r->crop_ratio[1]) g.width = (int)rint(height * r->crop_ratio[1]);
    g.top = (height - g.height) / 2;
    g.left = (width - g.width) / 2;
    return g;
}

static geometry choose(const recipe *r, int height, int width, int64_t epoch, int64_t index) {
    uint64_t random = mix(r->seed * GOLDEN + 1);
    random = mix(random + (uint64_t)epoch * GOLDEN + 1);
    random = mix(random + (uint64_t)index * GOLDEN + 1);
    geometry g = {.height = height, .width = width};
    if (r->whole) {
        g.resized_height = height;
        g.resized_width = width;
    } else if (r->train) {
        g = random_crop(r, height, width, &random);
        g.resized_height = r->height;
        g.resized_width = r->width;
    } else {
        int wide = width > height;
        double longer = wide ? (double)((int64_t)r->short_side * width) / height
                             : (double)((int64_t)r->short_side * height) / width;
        g.resized_height = wide ? r->short_side : (int)longer;
        g.resized_width = wide ? (int)longer : r->short_side;
        g.window_top = (int)rint((g.resized_height - r->height) / 2.0);
        g.window_left = (int)rint((g.resized_width - r->width) / 2.0);
    }
    g.flip = r->train && uniform(&random) < r->flip_probability;
    return g;
}

/* For the test that holds it against transform.py. */
void lb_choose(const recipe *r, int height, int width, int64_t epoch, int64_t index, geometry *found) {
    *found = choose(r, height, width, epoch, index);
}

/* -- resize ------------------------------------------------------------------------------------------- */

/* How each of `count` outputs along one axis is blended: up to `most` weights (in 1/65536) for each, its first input
 * and how many it uses. begin, end: the inputs that are used at all. */
typedef struct {
    uint16_t *weights;
    int32_t *first, *used;
    int most, count, begin, end;
} axis;

static inline size_t round_up(size_t n) { return (n + PAD - 1) / PAD * PAD; }

/* Of the filter at a distance from its centre, in its reaches. */
static inline double triangle(double distance) {
    distance = fabs(distance);
    return distance < 1 ? 1 - distance : 0;
}

/* Outputs window … window + count of `resized`, blended from inputs `from` … `from + size` (in pixels of a picture
 * that ends at `limit`). Pillow's precompute_coeffs, but for weights that sum up to 1 however many they are: what one
 * is rounded by is the next one's. */
static axis blend_axis(maker *m, buffer *b, double from, double size, int limit, int resized, int window, int count) {
    double scale = size / resized, reach = scale < 1 ? 1 : scale;
    int lowest = (int)floor(from), num_inputs = (int)ceil(from + size);
    num_inputs = (num_inputs < limit ? num_inputs : limit) - lowest;
    axis a = {.most = 2 * (int)ceil(reach) + 1, .count = count};
    size_t room = (size_t)count * (2 * sizeof(int32_t) + (size_t)a.most * sizeof(uint16_t));
    a.first = (int32_t *)room_for(m, b, room);
    a.used = a.first + count;
    a.weights = (uint16_t *)(a.used + count);
    for (int i = 0; i < count; i++) {
        double centre = from - lowest + (window + i + 0.5) * scale, sum = 0, so_far = 0;
        int begin = (int)(centre - reach + 0.5), end = (int)(centre + reach + 0.5);
        if (begin < 0) begin = 0;
        if (end > num_inputs) end = num_inputs;
        for (int k = begin; k < end; k++) sum += triangle((k - centre + 0.5) * (1.0 / reach));
        uint16_t *weights = a.weights + (size_t)i * a.most;
        for (int k = begin, told = 0; k < end; k++) {
            so_far += triangle((k - centre + 0.5) * (1.0 / reach)) * (65536 / sum);
            int weight = (int)(0.5 + so_far) - told;
            told += weight;
            weights[k - begin] = (uint16_t)(weight < 65535 ? weight : 65535);
        }
        while (end - begin > 1 && weights[end - begin - 1] == 0) end--;
        a.first[i] = lowest + begin;
        a.used[i] = end - begin;
    }
    a.begin = a.first[0];
    a.end = a.begin;
    for (int i = 0; i < count; i++)
        if (a.first[i] + a.used[i] > a.end) a.end = a.first[i] + a.used[i];
    return a;
}

#if defined(__AVX512BW__)
typedef __m512i lanes;
#define OP(name) _mm512_##name
#define WHOLE(name) _mm512_##name##_si512
#elif defined(__AVX2__)
typedef __m256i lanes;
#define OP(name) _mm256_##name
#define WHOLE(name) _mm256_##name##_si256
#elif defined(__SSE2__)
typedef __m128i lanes;
#define OP(name) _mm_##name
#define WHOLE(name) _mm_##name##_si128
#endif

/* As blend_rows, of any number, with whole products. */
static void blend_many(uint8_t *out, const uint8_t *in, size_t step, const uint16_t *weights, int num, size_t length) {
    for (size_t i = 0; i < length; i += PAD) {
        uint32_t sums[PAD];
        for (int j = 0; j < PAD; j++) sums[j] = 1 << 15;
        for (int k = 0; k < num; k++) {
            const uint8_t *row = in + k * step + i;
            for (int j = 0; j < PAD; j++) sums[j] += (uint32_t)row[j] * weights[k];
        }
        for (int j = 0; j < PAD; j++) out[i + j] = (uint8_t)(sums[j] >> 16 < 255 ? sums[j] >> 16 : 255);
    }
}

/* out[i] = Σ weights[k] · in[k · step + i] for i < length, a multiple of PAD. A product is the upper half of 16 bits
 * times 16, in 1/256 level: one instruction for as many pixels as a register holds. The plain loop gives the same. */
static void blend_rows(uint8_t *out, const uint8_t *in, size_t step, const uint16_t *weights, int num, size_t length) {
    if (num > MOST_HALVES) {
        blend_many(out, in, step, weights, num, length);
        return;
    }
    const int half = 128 + num / 2; /* half a level, and what the upper halves lose in the mean */
#ifdef OP
    for (size_t i = 0; i < length; i += sizeof(lanes)) {
        lanes low = OP(set1_epi16)((short)half), high = low;
        for (int k = 0; k < num; k++) {
            lanes row = WHOLE(loadu)((const lanes *)(in + k * step + i));
            lanes weight = OP(set1_epi16)((short)weights[k]);
            low = OP(adds_epu16)(low, OP(mulhi_epu16)(OP(unpacklo_epi8)(WHOLE(setzero)(), row), weight));
            high = OP(adds_epu16)(high, OP(mulhi_epu16)(OP(unpackhi_epi8)(WHOLE(setzero)(), row), weight));
        }
        WHOLE(storeu)((lanes *)(out + i), OP(packus_epi16)(OP(srli_epi16)(low, 8), OP(srli_epi16)(high, 8)));
    }
#else
    for (size_t i = 0; i < length; i += PAD) {
        uint32_t sums[PAD];
        for (int j = 0; j < PAD; j++) sums[j] = (uint32_t)half;
        for (int k = 0; k < num; k++) {
            const uint8_t *row = in + k * step + i;
            for (int j = 0; j < PAD; j++) sums[j] += ((uint32_t)row[j] << 8) * weights[k] >> 16;
        }
        for (int j = 0; j < PAD; j++) out[i + j] = (uint8_t)(sums[j] < 65535 ? sums[j] >> 8 : 255);
    }
#endif
}

typedef uint8_t block __attribute__((vector_size(BYTES)));
#if defined(__clang__)
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#else
#define LOW(a, b) __builtin_shuffle(a, b, (block){0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23})
#define HIGH(a, b) __builtin_shuffle(a, b, (block){8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31})
#endif

/* out[x][y] = in[y][x]. Rows and columns are multiples of BYTES. Interleaving rows i and i + 8 of a block of 16 four
 * times transposes it. */
static void transpose(uint8_t *out, size_t out_step, const uint8_t *in, size_t in_step, size_t rows, size_t columns) {
    for (size_t y = 0; y < rows; y += BYTES)
        for (size_t x = 0; x < columns; x += BYTES) {
            block a[BYTES], b[BYTES];
            for (int i = 0; i < BYTES; i++) memcpy(&a[i], in + (y + i) * in_step + x, BYTES);
            for (int turn = 0; turn < 4; turn += 2) {
                for (int i = 0; i < 8; i++) b[2 * i] = LOW(a[i], a[i + 8]), b[2 * i + 1] = HIGH(a[i], a[i + 8]);
                for (int i = 0; i < 8; i++) a[2 * i] = LOW(b[i], b[i + 8]), a[2 * i + 1] = HIGH(b[i], b[i + 8]);
            }
            for (int i = 0; i < BYTES; i++) memcpy(out + (x + i) * out_step + y, &a[i], BYTES);
        }
}

/* A sample in the making. */
typedef struct {
    axis down, across;
    int left;                    /* column of the picture that its rows begin with */
    int flip, made;              /* made: how many rows of the sample are blended from rows of the picture */
    uint8_t *out;
    size_t out_step;
} sample;

static size_t row_length(const sample *s) { return round_up((size_t)(s->across.end - s->across.begin) * CHANNELS); }

/* Blend the columns of `num` rows of m->lowered into rows `from` … of the sample. */
static void blend_columns(maker *m, const sample *s, int from, int num) {
    const axis *across = &s->across;
    size_t length = row_length(s), out_length = (size_t)across->count * CHANNELS, padded = round_up(out_length);
    size_t some = ((size_t)num + BYTES - 1) / BYTES * BYTES;
    uint8_t *columns = room_for(m, &m->columns, length * PAD);
    uint8_t *resized = room_for(m, &m->resized, padded * PAD);
    uint8_t *turned = room_for(m, &m->turned, padded * PAD);
    transpose(columns, PAD, m->lowered.bytes, length, some, length);
    for (int x = 0; x < across->count; x++) {
        const uint8_t *first = columns + (size_t)(across->first[x] - across->begin) * CHANNELS * PAD;
        uint8_t *to = resized + (size_t)(s->flip ? across->count - 1 - x : x) * CHANNELS * PAD;
        blend_rows(to, first, CHANNELS * PAD, across->weights + (size_t)x * across->most, across->used[x],
                   CHANNELS * PAD);
    }
    transpose(turned, padded, resized, PAD, padded, some);
    for (int y = 0; y < num; y++) memcpy(s->out + (from + y) * s->out_step, turned + y * padded, out_length);
}

/* Make all rows of the sample that need no row of the picture from `end` on. `pixels` begins with row `top`; its rows
 * must reach PAD bytes farther than what is used of them. Rows are blended first, where a large picture has most, so
 * that little is transposed, and PAD of the sample at a time, which stay in the processor's nearer caches. */
static void resize(maker *m, sample *s, const uint8_t *pixels, size_t step, int top, int end) {
    const axis *down = &s->down;
    size_t length = row_length(s);
    uint8_t *lowered = room_for(m, &m->lowered, length * PAD);
    pixels += (size_t)(s->across.begin - s->left) * CHANNELS;
    while (s->made < down->count && down->first[s->made] + down->used[s->made] <= end) {
        int y = s->made++;
        blend_rows(lowered + y % PAD * length, pixels + (size_t)(down->first[y] - top) * step, step,
                   down->weights + (size_t)y * down->most, down->used[y], length);
        if (s->made % PAD == 0 || s->made == down->count) blend_columns(m, s, y / PAD * PAD, y % PAD + 1);
    }
}

/* -- decode ------------------------------------------------------------------------------------------- */

/* images/jpeg.py: too_many_scans. `body` begins behind the header of the first scan. */
static void check_scans(maker *m, const uint8_t *body, const uint8_t *end) {
    uint64_t pixels = (uint64_t)m->jpeg.image_width * m->jpeg.image_height, num = 1, most = MOST_SCANNED_PIXELS / pixels;
    if ((uint64_t)(end - body) <= most * SCAN_BYTES || !jpeg_has_multiple_scans(&m->jpeg)) return;
    for (const uint8_t *at = body + 1; at < end && (at = memchr(at, 0xDA, (size_t)(end - at))) != NULL; at++)
        num += at[-1] == 0xFF;
    if (num <= most) return;
    snprintf(m->message, sizeof m->message, "too costly to decode: %llu scans of %u×%u pixels, of at most %llu",
             (unsigned long long)num, m->jpeg.image_width, m->jpeg.image_height, (unsigned long long)most);
    longjmp(m->failed, BROKEN);
}

/* Read the header. A file without an end marker behind it is truncated, whatever part of it is wanted: the marker
 * cannot occur in entropy-coded data (ITU-T T.81, F.1.2.3). */
static void open_jpeg(maker *m, const uint8_t *data, size_t size) {
    jpeg_mem_src(&m->jpeg, data, size);
    jpeg_read_header(&m->jpeg, TRUE);
    const uint8_t *body = m->jpeg.src->next_input_byte;
    const uint8_t *end = data + size;
    do end = memrchr(body, 0xD9, (size_t)(end - body));
    while (end != NULL && (end == body || end[-1] != 0xFF));
    if (end == NULL) fail(m, BROKEN, "premature end of JPEG file");
    if ((uint64_t)m->jpeg.image_width * m->jpeg.image_height > MOST_PIXELS) {
        snprintf(m->message, sizeof m->message, "%u×%u pixels: more than %d, which is the most that is decoded",
                 m->jpeg.image_width, m->jpeg.image_height, MOST_PIXELS);
        longjmp(m->failed, BROKEN);
    }
    check_scans(m, body, data + size);
    if (m->jpeg.jpeg_color_space == JCS_CMYK || m->jpeg.jpeg_color_space == JCS_YCCK)
        fail(m, FOREIGN_COLOURS, "CMYK");
    m->jpeg.out_color_space = JCS_RGB;
}

/* Start to decode what *s needs of the (scaled) picture, and give the first row that is decoded. */
static int start(maker *m, sample *s) {
    struct jpeg_decompress_struct *jpeg = &m->jpeg;
    jpeg_start_decompress(jpeg);
    JDIMENSION from = 0, width = jpeg->output_width, first = 0;
    /* Cropping is tested with the samplings that cameras and encoders use; anything else is decoded whole. */
    if (jpeg->max_h_samp_factor <= 2 && jpeg->max_v_samp_factor <= 2) {
        if (s->down.begin > MARGIN) first = (JDIMENSION)(s->down.begin - MARGIN);
        if (s->across.begin > MARGIN) from = (JDIMENSION)(s->across.begin - MARGIN);
        JDIMENSION last = (JDIMENSION)s->across.end + MARGIN;
        width = (last < width ? last : width) - from;
        if (width < jpeg->output_width) jpeg_crop_scanline(jpeg, &from, &width);
        if (first > 0) jpeg_skip_scanlines(jpeg, first);
    }
    s->left = (int)from;
    return (int)first;
}

/* Bytes of a decoded row. A sample's columns may begin anywhere in it. */
static size_t row_step(const maker *m) { return round_up((size_t)m->jpeg.output_width * CHANNELS) + PAD; }

static void read_rows(maker *m, uint8_t *to, size_t step, int num) {
    for (int y = 0; y < num;) {
        uint8_t *rows[ROWS];
        int most = num - y < ROWS ? num - y : ROWS;
        for (int i = 0; i < most; i++) rows[i] = to + (y + i) * step;
        y += (int)jpeg_read_scanlines(&m->jpeg, rows, (JDIMENSION)most);
    }
}

/* Decode and blend in turn, a few rows at a time: those that no row of the sample needs any more make room. */
static void decode_and_resize(maker *m, sample *s, report *told) {
    int top = start(m, s), end = top, most = s->down.most + MARGIN + PAD;
    size_t step = row_step(m);
    uint8_t *pixels = room_for(m, &m->pixels, most * step);
    while (end < s->down.end) {
        int num = s->down.end - end < ROWS ? s->down.end - end : ROWS;
        if (end + num - top > most) {
            int kept = s->down.first[s->made] < end ? s->down.first[s->made] : end;
            memmove(pixels, pixels + (kept - top) * step, (end - kept) * step);
            top = kept;
        }
        read_rows(m, pixels + (end - top) * step, step, num);
        end += num;
        told->decode_ns += ns_since(m);
        resize(m, s, pixels, step, top, end);
        told->augment_ns += ns_since(m);
    }
    jpeg_abort_decompress(&m->jpeg);
}

/* Eighths of the full size to decode at: libjpeg-turbo has fast transforms for 8, 4, 2 and 1. */
static unsigned eighths(const recipe *r, const geometry *g) {
    unsigned found = 8;
    while (r->scale && found > 1 && g->height * (found / 2) >= (unsigned)g->resized_height * 8 &&
           g->width * (found / 2) >= (unsigned)g->resized_width * 8)
        found /= 2;
    return found;
}

/* Read the header and choose what *s needs of the picture. */
static void choose_sample(maker *m, const recipe *r, const uint8_t *data, size_t size, int64_t epoch, int64_t index,
                          sample *s) {
    struct jpeg_decompress_struct *jpeg = &m->jpeg;
    open_jpeg(m, data, size);
    int height = (int)jpeg->image_height, width = (int)jpeg->image_width;
    if (r->whole && (height != r->height || width != r->width)) fail(m, WRONG_SIZE, "another size");
    geometry g = choose(r, height, width, epoch, index);
    if (!r->train && (uint64_t)g.resized_width * g.resized_height > MOST_PIXELS) {
        snprintf(m->message, sizeof m->message, "too costly to resize: to %d×%d pixels", g.resized_width,
                 g.resized_height);
        longjmp(m->failed, BROKEN);
    }
    jpeg->scale_num = eighths(r, &g);
    jpeg->scale_denom = 8;
    jpeg_calc_output_dimensions(jpeg);
    double scale = jpeg->scale_num / 8.0;
    s->flip = g.flip;
    s->down = blend_axis(m, &m->taps[0], g.top * scale, g.height * scale, (int)jpeg->output_height,
                         g.resized_height, g.window_top, r->height);
    s->across = blend_axis(m, &m->taps[1], g.left * scale, g.width * scale, (int)jpeg->output_width,
                           g.resized_width, g.window_left, r->width);
}

/* -- files -------------------------------------------------------------------------------------------- */

#define CPU_TIMED_EACH 8

/* ns that the calling thread has waited for a processor (samplers/run_queue.py); -1: unknown. The file stays bound to
 * the thread that opened it, which is the maker's only one. */
static int64_t queued_ns(maker *m) {
    char text[96];
    if (m->run_queue == 0) m->run_queue = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    ssize_t length = m->run_queue < 0 ? -1 : pread(m->run_queue, text, sizeof text - 1, 0);
    if (length <= 0) return -1;
    text[length] = '\0';
    const char *second = strchr(text, ' ');
    return second == NULL ? -1 : strtoll(second, NULL, 10);
}

/* times: when opening began, ns until it was open, ns until it was read, bytes; not written where that failed. */
static const uint8_t *read_file(maker *m, const char *path, int evict, size_t *size, int64_t *times,
                                int *error_number) {
    int64_t begun = now_ns();
    int file = open(path, O_RDONLY | O_CLOEXEC);
    int64_t opened = now_ns();
    struct stat facts;
    size_t have = 0;
    if (file < 0 || fstat(file, &facts) < 0) {
        *error_number = errno;
        if (file >= 0) close(file);
        return NULL;
    }
    if (m->file.room < (size_t)facts.st_size) {
        free(m->file.bytes);
        m->file.room = (size_t)facts.st_size * 5 / 4;
        m->file.bytes = malloc(m->file.room + 1);
    }
    *error_number = m->file.bytes == NULL && m->file.room ? ENOMEM : 0;
    while (*error_number == 0 && have < (size_t)facts.st_size) {
        ssize_t more = read(file, m->file.bytes + have, (size_t)facts.st_size - have);
        if (more < 0 && errno == EINTR) continue;
        if (more < 0) *error_number = errno;
        if (more <= 0) break;
        have += (size_t)more;
    }
    if (*error_number == 0 && evict) posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    close(file);
    if (m->file.bytes == NULL) m->file.room = 0;
    *size = have;
    if (*error_number == 0) {
        times[0] = begun;
        times[1] = opened - begun;
        times[2] = now_ns() - opened;
        times[3] = (int64_t)have;
    }
    return *error_number ? NULL : m->file.bytes;
}

/* -- entry points ------------------------------------------------------------------------------------- */

#define TEXT(name) #name
#define TEXT_OF(macro) TEXT(macro)

/* Of the headers that this was compiled with. */
const char *lb_version(void) { return TEXT_OF(LIBJPEG_TURBO_VERSION); }

maker *lb_new(void) {
    maker *volatile m = calloc(1, sizeof(maker));
    if (m == NULL) return NULL;
    m->jpeg.err = jpeg_std_error(&m->errors);
    m->errors.error_exit = on_error;
    m->errors.emit_message = on_message;
    m->jpeg.client_data = m;
    if (setjmp(m->failed)) {
        free(m);
        return NULL;
    }
    jpeg_create_decompress(&m->jpeg);
    m->jpeg.mem->max_memory_to_use = MOST_LIBJPEG_BYTES;
    return m;
}

void lb_free(maker *m) {
    jpeg_destroy_decompress(&m->jpeg);
    buffer *all[] = {&m->file, &m->pixels, &m->lowered, &m->columns, &m->resized, &m->turned, &m->taps[0],
                     &m->taps[1]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->bytes);
    if (m->run_queue > 0) close(m->run_queue);
    free(m);
}

static int failed(maker *m, report *told, int status) {
    told->status = status;
    told->height = (int32_t)m->jpeg.image_height;
    told->width = (int32_t)m->jpeg.image_width;
    memcpy(told->message, m->message, sizeof told->message);
    jpeg_abort_decompress(&m->jpeg);
    return status;
}

static int make_one(maker *m, const recipe *r, const uint8_t *data, size_t size, int64_t epoch, int64_t index,
                    uint8_t *out, report *told) {
    m->asked_ns = now_ns();
    int status = setjmp(m->failed);
    if (status) {
        told->decode_ns += ns_since(m);
        return failed(m, told, status);
    }
    if (size == 0) fail(m, BROKEN, "empty file");
    sample s = {.out = out, .out_step = (size_t)r->width * CHANNELS};
    choose_sample(m, r, data, size, epoch, index, &s);
    decode_and_resize(m, &s, told);
    return MADE;
}

/* Make samples 0 … num into `out` (uint8 [num, height, width, 3]) and return how many were made: fewer than `num`
 * where the next could not be, for the reason in *told. Bytes come from files (`paths`), whose times go to `times`
 * [num][4], or from memory (`data`). */
int lb_make(maker *m, const recipe *r, int num, const char *const *paths, const uint8_t *const *data,
            const int64_t *sizes, const int64_t *indices, const int64_t *epochs, uint8_t *out, int64_t *times,
            report *told) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    int64_t read_cpu_ns = 0;
    memset(told, 0, offsetof(report, message));
    for (int i = 0; i < num; i++) {
        const uint8_t *encoded = data != NULL ? data[i] : NULL;
        size_t size = data != NULL ? (size_t)sizes[i] : 0;
        if (data == NULL) {
            /* A thread's clock is a system call, which would take 1 % of a small image: it stands for all files. */
            int timed = i % CPU_TIMED_EACH == 0;
            int64_t begun_cpu = timed ? ns_of(CLOCK_THREAD_CPUTIME_ID) : 0;
            int64_t begun = now_ns();
            int64_t begun_queue = m->reads_wait ? queued_ns(m) : -1;
            encoded = read_file(m, paths[i], r->evict, &size, times + 4 * i, &told->error_number);
            if (begun_queue >= 0) told->read_queue_ns += queued_ns(m) - begun_queue;
            int64_t took = now_ns() - begun;
            told->read_ns += took;
            m->reads_wait = took >= WAITING_READ_NS;
            if (timed) read_cpu_ns = ns_of(CLOCK_THREAD_CPUTIME_ID) - begun_cpu;
            told->read_cpu_ns += read_cpu_ns;
            if (encoded == NULL && told->error_number) {
                told->status = UNREADABLE;
                return i;
            }
        }
        uint8_t *slot = out + (size_t)i * r->height * r->width * CHANNELS;
        int status = make_one(m, r, encoded, size, epochs[i], indices[i], slot, told);
        if (status == FOREIGN_COLOURS) { /* whoever makes it counts its bytes, and reads it once more */
            if (data == NULL) told->page_bytes += ((int64_t)size + page - 1) / page * page;
            return i;
        }
        told->encoded_bytes += (int64_t)size;
        told->page_bytes += ((int64_t)size + page - 1) / page * page;
        if (status) return i;
    }
    return num;
}

/* Size of a JPEG, into told->height and width. Returns a status. */
int lb_size(maker *m, const uint8_t *data, size_t size, report *told) {
    int status = setjmp(m->failed);
    if (status) return failed(m, told, status);
    if (size == 0) fail(m, BROKEN, "empty file");
    open_jpeg(m, data, size);
    return failed(m, told, MADE);
}

/* All pixels of a JPEG, into `out` (uint8 [height, width, 3], of the size that lb_size told). Returns a status. */
int lb_decode(maker *m, const uint8_t *data, size_t size, uint8_t *out, report *told) {
    int status = setjmp(m->failed);
    if (status) return failed(m, told, status);
    open_jpeg(m, data, size);
    m->jpeg.scale_num = m->jpeg.scale_denom = 8;
    jpeg_start_decompress(&m->jpeg);
    while (m->jpeg.output_scanline < m->jpeg.output_height) {
        uint8_t *row = out + (size_t)m->jpeg.output_scanline * m->jpeg.output_width * CHANNELS;
        jpeg_read_scanlines(&m->jpeg, &row, 1);
    }
    return failed(m, told, MADE);
}

/* The part of `pixels` (uint8 [rows, columns, 3], rows `step` bytes apart) that *g names, into `out` (uint8
 * [height, width, 3]). Returns a status. */
int lb_resize(maker *m, const uint8_t *pixels, size_t step, const geometry *g, int height, int width, uint8_t *out,
              report *told) {
    int status = setjmp(m->failed);
    if (status) return failed(m, told, status);
    sample s = {.flip = g->flip, .out = out, .out_step = (size_t)width * CHANNELS};
    s.down = blend_axis(m, &m->taps[0], 0, g->height, g->height, g->resized_height, g->window_top, height);
    s.across = blend_axis(m, &m->taps[1], 0, g->width, g->width, g->resized_width, g->window_left, width);
    s.left = s.across.begin;
    size_t length = (size_t)(s.across.end - s.across.begin) * CHANNELS, own = round_up(length);
    uint8_t *copy = room_for(m, &m->pixels, (size_t)(s.down.end - s.down.begin) * own);
    for (int y = s.down.begin; y < s.down.end; y++)
        memcpy(copy + (y - s.down.begin) * own,
               pixels + (g->top + y) * step + (size_t)(g->left + s.across.begin) * CHANNELS, length);
    resize(m, &s, copy, own, s.down.begin, s.down.end);
    return MADE;
}
