import io, os
with open("data.txt", "w", encoding="utf-8", newline="\r\n") as file:
    file.write("line 1\nläne 2\n")
print(open("data.txt", "rb").read(), os.path.getsize("data.txt"), os.listdir("."))
with open("data.txt", "r+") as file:
    file.seek(0, os.SEEK_END)
    file.write("end")
    file.seek(0)
    print(file.readlines(), file.tell())
print(io.BytesIO(b"abc").getvalue(), io.StringIO("x\ny").readlines())
open("missing.txt")
