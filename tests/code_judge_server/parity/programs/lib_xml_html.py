import html, xml.etree.ElementTree as ET
from html.parser import HTMLParser
from urllib.parse import parse_qs, quote, urljoin, urlparse
root = ET.fromstring("<a><b x='1'>t</b><b x='2'/></a>")
print([b.attrib for b in root.iter("b")], ET.tostring(root), html.escape("<&>"), html.unescape("&eacute;"))
class Links(HTMLParser):
    def handle_starttag(self, tag, attrs): print(tag, attrs)
Links().feed('<a href="x">y</a><br>')
print(urlparse("http://u@h:1/p?q=1#f"), parse_qs("a=1&a=2"), quote("ä b/"), urljoin("http://h/a/b", "../c"))
ET.fromstring("<a><b></a>")
