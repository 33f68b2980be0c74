import re
print(re.findall(r"(\w+)@(\w+)\.com", "a@b.com, c@d.com"), re.sub(r"(?P<x>\d)", r"<\g<x>>", "a1b2"))
match = re.search(r"(?i)HELLO\s+(?P<who>\w+)", "say hello World")
print(match, match.groupdict(), match.span("who"), re.split(r"[,;]\s*", "a, b;c"), re.escape("a.b*c"))
print(re.compile(r"x{2,3}", re.VERBOSE))
re.compile("(unclosed")
