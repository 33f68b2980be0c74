import os, signal

try:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(10**6):
        pass
except KeyboardInterrupt:
    print("caught")
