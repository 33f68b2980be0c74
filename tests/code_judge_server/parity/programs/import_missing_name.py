from math import sinus
