value = 1234567.891
print(f"{value:,.2f} {value:e} {value:>20} {value:010.1f} {255:#x} {255:08b} {0.5:.1%} {'text':^10}|{'x'!r:>5}")
print("%s %5d %-5s| %05.1f %r" % ("a", 42, "l", 3.14159, "r"), "{0[k]} {1.real}".format({"k": 1}, 5), f"{value=:.1f}")
import string, textwrap
print(string.Template("$a ${b}").substitute(a=1, b=2), textwrap.fill("word " * 20, 30), textwrap.dedent("  x\n  y"))
print("ǅ".lower(), "ß".upper(), "İ".casefold(), "straße".title(), "a\tb".expandtabs(4), "abc".center(9, "*"))
