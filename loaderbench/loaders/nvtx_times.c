/* Sums the time of a program's NVTX ranges by name: an injection library of NVTX 3.
 *
 * The program (here DALI) loads it by the path in NVTX_INJECTION64_PATH and calls InitializeInjectionNvtx2, which puts the
 * functions below into NVTX's table (NVTX's nvtxTypes.h: the callbacks of module CORE2). Only ranges that are pushed and
 * popped on one thread are kept, as DALI marks its operators. Ranges that differ only in what follows " #" (DALI
 * numbers some) are one entry.
 *
 * No locks: an entry is claimed once by a compare-and-swap and found again by its hash; sums are atomic additions.
 */

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

enum { NAME_BYTES = 96, ENTRIES = 1024, DEPTH = 64 };
enum { EMPTY, CLAIMED, READY };

/* What `nvtx_times_read` writes; nvtx_times.py has the same layout. */
struct row {
    char name[NAME_BYTES];
    uint64_t count;
    uint64_t ns;
};

struct entry {
    _Atomic int state;
    char name[NAME_BYTES];
    _Atomic uint64_t count, ns;
};

struct open_range {
    struct entry *entry;
    uint64_t begun_ns;
};

static struct entry table[ENTRIES];
static _Atomic uint64_t num_lost;
static _Thread_local struct open_range stack[DEPTH];
static _Thread_local unsigned depth;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The entry of a name (cut at " #" and at NAME_BYTES - 1); NULL when the table is full. */
static struct entry *find(const char *name) {
    size_t length = 0;
    uint32_t hash = 2166136261u; /* FNV-1a */
    while (length < NAME_BYTES - 1 && name[length] && !(name[length] == ' ' && name[length + 1] == '#')) {
        hash = (hash ^ (unsigned char)name[length++]) * 16777619u;
    }
    for (uint32_t tried = 0; tried < ENTRIES; tried++) {
        struct entry *one = &table[(hash + tried) % ENTRIES];
        int state = atomic_load_explicit(&one->state, memory_order_acquire);
        if (state == EMPTY && atomic_compare_exchange_strong(&one->state, &state, CLAIMED)) {
            memcpy(one->name, name, length);
            one->name[length] = 0;
            atomic_store_explicit(&one->state, READY, memory_order_release);
            return one;
        }
        while (state == CLAIMED) { /* another thread is writing its name, a few ns */
            state = atomic_load_explicit(&one->state, memory_order_acquire);
        }
        if (memcmp(one->name, name, length) == 0 && one->name[length] == 0) return one;
    }
    atomic_fetch_add(&num_lost, 1);
    return NULL;
}

static int push(const char *name) {
    if (depth < DEPTH) {
        stack[depth].entry = name ? find(name) : NULL;
        stack[depth].begun_ns = now_ns();
    } else {
        atomic_fetch_add(&num_lost, 1);
    }
    return (int)depth++;
}

static int pop(void) {
    if (depth == 0) return -1; /* begun before this library was loaded */
    if (--depth < DEPTH) {
        struct open_range *range = &stack[depth];
        uint64_t ns = now_ns() - range->begun_ns;
        if (range->entry) {
            atomic_fetch_add_explicit(&range->entry->count, 1, memory_order_relaxed);
            atomic_fetch_add_explicit(&range->entry->ns, ns, memory_order_relaxed);
        }
    }
    return (int)depth;
}

/* The rows so far, at most `most`; returns how many. */
int nvtx_times_read(struct row *rows, int most) {
    int count = 0;
    for (int number = 0; number < ENTRIES && count < most; number++) {
        struct entry *one = &table[number];
        if (atomic_load_explicit(&one->state, memory_order_acquire) != READY) continue;
        memcpy(rows[count].name, one->name, NAME_BYTES);
        rows[count].count = atomic_load_explicit(&one->count, memory_order_relaxed);
        rows[count].ns = atomic_load_explicit(&one->ns, memory_order_relaxed);
        count++;
    }
    return count;
}

/* Ranges that found no room; 0 unless a program makes up more than ENTRIES names or nests deeper than DEPTH. */
uint64_t nvtx_times_lost(void) { return atomic_load(&num_lost); }

/* NVTX's side: nvtxEventAttributes_t, version 2 and later, up to its message. */
struct attributes {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const void *message;
};
enum { MESSAGE_ASCII = 1, MESSAGE_REGISTERED = 3 };

/* Domains are kept apart by a handle that we give out: one for "DALI", one for all others. */
static const char wanted_domain[] = "DALI", other_domain[] = "other";

static const char *message_of(const struct attributes *event) {
    /* A registered string is the text itself: `register_string` gives that out as its handle. */
    int known = event && (event->message_type == MESSAGE_ASCII || event->message_type == MESSAGE_REGISTERED);
    return known ? event->message : NULL;
}

static const void *create_domain(const char *name) {
    return name && strcmp(name, wanted_domain) == 0 ? wanted_domain : other_domain;
}

static const void *register_string(const void *domain, const char *text) {
    return domain == (const void *)wanted_domain && text ? strdup(text) : NULL;
}

static int domain_push(const void *domain, const struct attributes *event) {
    return domain == (const void *)wanted_domain ? push(message_of(event)) : -1;
}

static int domain_pop(const void *domain) { return domain == (const void *)wanted_domain ? pop() : -1; }

typedef void (*function)(void);

struct callbacks { /* NvtxExportTableCallbacks */
    size_t struct_size;
    int (*module_table)(int module, function ***table, unsigned *size);
};
enum { TABLE_CALLBACKS = 1, MODULE_CORE2 = 5 };
enum { PUSH = 4, POP = 5, REGISTER = 10, CREATE = 12 }; /* NvtxCallbackIdCore2 */

int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t)) {
    const struct callbacks *callbacks = export_table(TABLE_CALLBACKS);
    function **slots;
    unsigned size;
    if (!callbacks || callbacks->struct_size < sizeof *callbacks) return 0;
    if (!callbacks->module_table(MODULE_CORE2, &slots, &size) || size <= CREATE) return 0;
    *slots[PUSH] = (function)domain_push;
    *slots[POP] = (function)domain_pop;
    *slots[REGISTER] = (function)register_string;
    *slots[CREATE] = (function)create_domain;
    return 1;
}
