import io, os, sys

for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream, stream.buffer, stream.buffer.raw, stream.encoding, stream.errors, stream.newlines)
    print(
        stream.line_buffering, stream.write_through, stream.isatty(), stream.fileno(), stream.mode, stream._CHUNK_SIZE
    )
    print(stream.readable(), stream.writable(), stream.seekable(), stream.closed, stream.buffer.raw.closefd)
print(sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__)
print(io.DEFAULT_BUFFER_SIZE, sorted(os.listdir("/proc/self/fd")), os.dup(1))
