import sys
text = sys.stdin.read()
print(ascii(text), len(text))
sys.stdout.write(text)
