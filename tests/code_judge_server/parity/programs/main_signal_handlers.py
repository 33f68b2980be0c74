import signal

for number in sorted(signal.valid_signals()):
    print(int(number), signal.getsignal(number))
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getitimer(signal.ITIMER_REAL), signal.set_wakeup_fd(-1))
