/* The sandbox's program: holds the pod's namespaces and reaps what its containers leave behind. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) { (void)signal; _exit(0); }

static void reap(int signal) {
  (void)signal;
  while (waitpid(-1, 0, WNOHANG) > 0) {
  }
}

int main(void) {
  signal(SIGINT, end);
  signal(SIGTERM, end);
  signal(SIGCHLD, reap);
  for (;;) pause();
}
