/* Asks for the matrix unit. */
#include "amx.h"

#if RK_AMX
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023 /* asm/prctl.h: the size of saved registers grows */
#define XFEATURE_XTILEDATA 18

static int granted;

static void ask(void) {
    granted = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

int rk_amx(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ask);
    return granted;
}
#else
int rk_amx(void) { return 0; }
#endif
