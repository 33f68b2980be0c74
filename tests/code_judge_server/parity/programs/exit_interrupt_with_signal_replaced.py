import signal
signal.signal = signal.raise_signal = None
print("begin")
raise KeyboardInterrupt
