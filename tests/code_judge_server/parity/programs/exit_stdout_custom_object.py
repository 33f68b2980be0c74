import sys


class Tee:
    def __init__(self, stream):
        self.stream = stream

    def write(self, text):
        self.stream.write(text.upper())

    def flush(self):
        self.stream.flush()


sys.stdout = Tee(sys.stdout)
print("shouted")
