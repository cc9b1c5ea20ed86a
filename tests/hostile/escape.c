/* What a guest might do that has broken out of its sandbox: native code in a hardened process. It says what it achieved. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned can_open(const char *path, int flags) {
    int file = open(path, flags | O_CLOEXEC);
    if (file >= 0) close(file);
    return file >= 0;
}

/* A bit for each thing that was possible, in the order of `DEEDS` in hardening.rs. */
unsigned escape(const char *granted, const char *queue, const char *other) {
    unsigned achieved = 0;
    achieved |= can_open(granted, O_RDONLY) << 0;
    achieved |= can_open(granted, O_RDWR) << 1;
    achieved |= can_open(queue, O_RDONLY) << 2;
    achieved |= can_open(other, O_RDONLY) << 3;
    achieved |= can_open("/etc/passwd", O_RDONLY) << 4;
    achieved |= can_open("/proc/self/root/etc/passwd", O_RDONLY) << 5;
    pid_t child = fork();
    if (child == 0) _exit(0);
    if (child > 0) waitpid(child, NULL, 0);
    achieved |= (child > 0) << 6;
    achieved |= (ptrace(PTRACE_TRACEME, 0, 0, 0) == 0) << 7;
    char from = 1, to = 0;
    struct iovec local = {&to, 1}, remote = {&from, 1};
    achieved |= (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1) << 8;
    achieved |= (unshare(CLONE_NEWUTS) == 0) << 9;
    achieved |= (mount("none", "/mnt", "tmpfs", 0, NULL) == 0) << 10;
    achieved |= (chroot("/") == 0) << 11;
    /* The other interface of x86-64 kernels, where there is one: fork by its x32 number. */
#ifdef __x86_64__
    long by_x32 = syscall(0x40000000 + SYS_fork);
    if (by_x32 == 0) _exit(0);
    achieved |= (by_x32 > 0) << 12;
#endif
    /* Were this possible, nothing would be said of it all. */
    char *const arguments[] = {"true", NULL}, *const environment[] = {NULL};
    execve("/bin/true", arguments, environment);
    achieved |= (errno != EPERM && errno != EACCES) << 13;
    return achieved;
}
