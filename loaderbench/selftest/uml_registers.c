/* Preloaded into User-Mode Linux, so that it runs on processors with more registers than it allows for.
 *
 * Before Linux 6.13 it keeps a process's vector registers in 2696 bytes (arch/x86/um/user-offsets.c). The host hands out
 * the first 2696 bytes of more, but takes back nothing but the whole (EFAULT): with AMX 11008 bytes, of which nobody in
 * there can use the rest, since that takes a system call that this kernel lacks. So the rest is taken from the host.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

static long (*libc_ptrace)(int, ...);
static char registers[1 << 16]; /* not on the stack: the kernel's is 16 KiB; only one thread of it traces */

__attribute__((constructor)) static void find_ptrace(void) { libc_ptrace = dlsym(RTLD_NEXT, "ptrace"); }

long ptrace(enum __ptrace_request request, ...)
{
    va_list rest;
    va_start(rest, request);
    pid_t pid = va_arg(rest, pid_t);
    void *address = va_arg(rest, void *);
    void *data = va_arg(rest, void *);
    va_end(rest);

    /* Not by the error of a first try: the kernel's timer may interrupt, and changes errno. */
    struct iovec *given = data, whole = {registers, sizeof registers};
    if (request == PTRACE_SETREGSET && address == (void *)NT_X86_XSTATE &&
        libc_ptrace(PTRACE_GETREGSET, pid, address, &whole) == 0 && given->iov_len < whole.iov_len) {
        memcpy(registers, given->iov_base, given->iov_len);
        data = &whole;
    }
    return libc_ptrace(request, pid, address, data);
}
