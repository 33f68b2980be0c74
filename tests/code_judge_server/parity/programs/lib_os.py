import os, stat
print(os.sep, os.getpid() > 0, os.path.join("a", "/b"), os.path.splitext("x.tar.gz"), os.cpu_count() is not None)
os.symlink("target", "link")
print(os.readlink("link"), stat.S_ISLNK(os.lstat("link").st_mode), os.access("/etc/passwd", os.W_OK), sorted(os.listdir(".")))
fd = os.open("f", os.O_CREAT | os.O_RDWR)
os.write(fd, b"abc"); os.lseek(fd, 1, 0)
print(os.read(fd, 5), os.fstat(fd).st_size, fd, os.environ.get("NOPE"), os.getenv("LANG"))
print([entry.name for entry in sorted(os.scandir("."), key=lambda e: e.name)])
os.rmdir("missing")
