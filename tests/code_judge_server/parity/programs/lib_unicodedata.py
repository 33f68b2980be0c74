import locale, unicodedata
print(unicodedata.name("é"), unicodedata.normalize("NFD", "é").encode(), unicodedata.category("٣"), int("٣"), "٣".isdigit())
print(locale.getlocale(), locale.setlocale(locale.LC_ALL), locale.getpreferredencoding())
print("é".encode("latin-1"), "日本".encode("shift_jis"), b"\xff\xfe".decode("utf-16"), "ü".encode("idna"))
"ü".encode("ascii")
