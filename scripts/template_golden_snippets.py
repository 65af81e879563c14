"""Snippets for make_template_golden.py: every construct of the template language, with its edges."""

import template_golden_statements

CONTEXT = {
    "name": "Ada", "empty": "", "n": 7, "neg": -3, "zero": 0, "pi": 3.14159, "big": 1e20,
    "yes": True, "no": False, "nothing": None, "text": "  Hello, World!  ", "uni": "Grüße, 世界 🌍",
    "multi": "one\ntwo\n\n  three\r\nfour", "html": "<b a=\"1\">x & 'y'</b>",
    "nums": [3, 1, 2], "words": ["pear", "Apple", "fig"], "mixed": [1, "a", None, True, 2.5],
    "nested": [[1, 2], [3, [4, 5]]], "none_list": [], "none_dict": {},
    "d": {"b": 2, "a": 1, "C": 3}, "deep": {"x": {"y": [{"z": "found"}]}},
    "users": [{"name": "Zoe", "age": 31, "tags": ["a"]}, {"name": "bob", "age": 25, "admin": True},
              {"name": "Al", "age": 31, "tags": []}],
    "items": {"items": 1, "keys": 2}, "quote": "it's \"quoted\"", "tab": "a\tb\\c\x07",
}

EXPRESSIONS = r"""
1 + 2 * 3 - 4
7 / 2 ~ ' ' ~ 7 // 2 ~ ' ' ~ 7 % 3
-7 // 2 ~ ' ' ~ -7 % 3 ~ ' ' ~ 7 // -2 ~ ' ' ~ 7 % -3
-7.5 // 2 ~ ' ' ~ -7.5 % 2 ~ ' ' ~ 7.5 % -2 ~ ' ' ~ 6.0 % -3
2 ** 10 ~ ' ' ~ 2 ** -1 ~ ' ' ~ 2 ** 0.5 ~ ' ' ~ 2 ** 3 ** 2 ~ ' ' ~ -2 ** 2
10 / 5
1 / 3
1e16 ~ ' ' ~ 1e15 ~ ' ' ~ 123456789012345678.0 ~ ' ' ~ 1e-4 ~ ' ' ~ 1e-5 ~ ' ' ~ 1.5e300 ~ ' ' ~ 0.1 + 0.2
100.0 ~ ' ' ~ 1.0 ~ ' ' ~ -0.0 ~ ' ' ~ 5e-324 ~ ' ' ~ 1.7976931348623157e308
1 / 0
1 // 0
1 % 0
1.0 / 0
1_000 + 0x_ff + 0b101 + 0o17
1_0.5_0
true + true
True and none
'a' + 'b' 'c' "d"
'a' * 3 ~ 2 * 'b' ~ 'x' * -1
[1] * 2 + [3]
(1, 2) + (3,)
[1] + (2,)
'a' + 1
1 + none
none + 1
[] + 'a'
1 - 'a'
'a' - 'b'
{} + {}
+5 ~ -5 ~ - -5 ~ +true
-'a'
-none
1 < 2 < 3
1 < 3 < 2
3 > 2 >= 2 == 2 != 1
1 == 1.0 ~ ' ' ~ 1 == true ~ ' ' ~ 0 == false ~ ' ' ~ '1' == 1 ~ ' ' ~ none == false
'a' < 'b' ~ ' ' ~ 'B' < 'a' ~ ' ' ~ 'a' < 'aa' ~ ' ' ~ 'é' > 'z'
[1, 2] < [1, 3] ~ ' ' ~ (1,) < (1, 0) ~ ' ' ~ [1] == (1,)
{'a': 1, 'b': 2} == {'b': 2, 'a': 1}
1 < 'a'
none < 1
[1] < (1,)
{} < {}
1 in [1, 2] ~ 3 in [1, 2] ~ 'a' in 'cat' ~ 'x' not in 'cat' ~ '' in ''
'a' in d ~ 'z' in d ~ 'z' not in d ~ 1 in (1, 2) ~ 2 in range(3) ~ true in [1]
1 in 'a1'
1 in 5
1 in none
[1] in {}
[1] in [[1]]
'b' in d.keys() ~ 2 in d.values() ~ ('b', 2) in d.items()
not true ~ not none ~ not '' ~ not 'a' ~ not not 1
1 and 2 ~ ' ' ~ 0 and 2 ~ ' ' ~ 0 or 2 ~ ' ' ~ '' or 'x'
'' or none or 0
yes and not no
'a' if yes else 'b'
'a' if no
('a' if no) is defined
'a' if no else 'b' if no else 'c'
1 if 2 if 0 else 3 else 4
1 ~ 2 ~ none ~ true ~ 1.0 ~ [1, 'a'] ~ undefined_name
(1, 2)
(1,)
()
1, 2
1,
[]
[1, 'two', 3.0, none, true, [1], (2,), {'k': 'v'}]
{'a': 1, 2: 'b', none: none, 1.5: true, true: 0, (1, 2): 3}
{'a': 1, 'a': 2}
{[1]: 2}
['it\'s', "say \"hi\"", 'both \' and "', 'line\nbreak', 'tab\t', 'back\\slash', '\x00\x7f\x80', 'é', '\u200b', '\U0001F600', '\xad']
'\d\w\é\世'
'\x41\101\u00e9\N'
'\x4'
'multi
line'
"a" "b"
'\ud83d'
name
missing
missing.attr
missing['x']
missing()
missing + 1
missing == missing2 ~ missing == none ~ missing != 1
missing < 1
missing in [1]
'x' in missing
not missing
missing ~ 'a'
-missing
missing[1:2]
missing.x.y
[missing]
[missing, none]|tojson
d.a ~ d['a'] ~ d.get('a') ~ d.get('z') ~ d.get('z', 5) ~ d['z'] ~ d.z
d.z.y
d.items()
d.keys() ~ d.values()
d.keys()|list ~ d.values()|list
d|items|list
d[0]
items['items'] ~ items['keys']
items.items()|list
d.copy() == d
d.pop('a')
d.update({'x': 1})
d.update
d.clear is defined
d.fromkeys is defined
d.__class__
d.__class__ is defined
d['__class__']
d._private
name.__class__.__mro__
name._x
deep.x.y[0].z ~ deep['x']['y'][0]['z'] ~ deep.x.y.0.z
nested[1][1][0] ~ nested.1.1.1
nums[0] ~ nums[-1] ~ nums[5] ~ nums['x'] ~ nums[1.0] ~ nums[true] ~ nums[none]
nums[5].x
nums.append(4)
nums.append
nums.sort()
nums.index(1) ~ nums.count(3)
nums.index(9)
nums.copy()
(1, 2, 1).count(1) ~ (1, 2).index(2)
name[0] ~ name[-1] ~ name[9] ~ uni[7] ~ uni[-1]
name.0
5 .x
5[0]
none[0] ~ none.x
none.x.y
nums[1:] ~ nums[:2] ~ nums[::-1] ~ nums[-2:] ~ nums[5:] ~ nums[::2] ~ nums[-1:0:-1] ~ nums[:]
nums[1:none] ~ nums[none:none:none]
name[1:] ~ name[:-1] ~ name[::-1] ~ uni[2:9] ~ uni[::3] ~ uni[-3:] ~ uni[:100] ~ name[5:]
(1, 2, 3)[1:] ~ range(10)[2:8:2] ~ range(10)[::-1] ~ range(3)[1]
nums['a':]
nums[1.0:]
nums[::0]
nums[1:2, 3]
d[1:]
range(3) ~ range(1, 4) ~ range(0, 10, 3) ~ range(5, 0, -2)|list ~ range(3)|length
range()
range(1.5)
range('a')
range(1, 2, 0)
range(100001)
range(0, 1000000, 1000)|length
range(3) == range(0, 3, 1)
range(3).start ~ range(5).count(2) ~ range(0, 9, 3).index(6) ~ range(3).count('a')
range(3).index(5)
dict(a=1, b=2) ~ dict({'x': 1}, y=2) ~ dict([('k', 'v')]) ~ dict()
dict(1)
dict([1])
namespace(a=1).a ~ namespace({'b': 2}).b ~ namespace().x
namespace(a=1)
namespace(_a=1)
namespace(a=1)['a']
namespace(items=1).items
lipsum is defined
cycler('a', 'b').next()
cycler()
loop
name is defined ~ missing is defined ~ missing is undefined ~ d.a is defined ~ d.z is defined
nothing is none ~ name is not none ~ none is none
n is number ~ pi is number ~ yes is number ~ name is number
n is integer ~ yes is integer ~ pi is integer ~ pi is float ~ n is float
yes is boolean ~ yes is true ~ no is false ~ 1 is true ~ 0 is false ~ n is boolean
name is string ~ n is string ~ nums is string
d is mapping ~ nums is mapping ~ d.items() is mapping
nums is sequence ~ d is sequence ~ name is sequence ~ n is sequence ~ range(2) is sequence ~ missing is sequence ~ d.keys() is sequence ~ (1,) is sequence ~ (nums|map('string')) is sequence
nums is iterable ~ d is iterable ~ name is iterable ~ n is iterable ~ none is iterable ~ missing is iterable ~ (nums|select) is iterable ~ namespace() is iterable ~ d.values() is iterable ~ range is iterable
range is callable ~ name is callable ~ name.upper is callable ~ missing is callable ~ namespace is callable ~ d is callable
n is odd ~ n is even ~ n is divisibleby 7 ~ n is divisibleby(2) ~ 3.0 is odd
'a' is odd
'%d' is even
n is divisibleby 0
name is eq 'Ada' ~ name is equalto('x') ~ n is == 7 ~ n is gt 3 ~ n is ge 7 ~ n is lt 3 ~ n is le 7 ~ n is ne 7
n is greaterthan 3 ~ n is lessthan 3
n is in [7, 8] ~ 'd' is in 'Ada' ~ n is not in [1]
'abc' is lower ~ 'ABC' is upper ~ 'Abc' is lower ~ '123' is lower ~ 5 is upper ~ none is lower
nothing is sameas none ~ nums is sameas nums ~ [1] is sameas [1] ~ true is sameas 1
'upper' is filter ~ 'nope' is filter ~ 'odd' is test ~ 'nope' is test ~ 'urlize' is filter
('<'|e) is escaped ~ '<' is escaped
n is foo
n|foo
n is defined is true
n is not defined or yes
not n is defined
n + 1 is odd
[1, 2] is defined and n
text|trim ~ '|' ~ 'xxaxx'|trim('x') ~ '|' ~ 5|trim ~ missing|trim
'abcba'|trim(chars='ab')
name|length ~ uni|length ~ nums|count ~ d|length ~ missing|length ~ range(4)|length
n|length
none|length
(nums|map('string'))|length
name|upper ~ name|lower ~ uni|upper ~ 5|upper ~ none|lower ~ nums|upper
'hello wORLD foo-bar (baz) {x} [y] <z> it\'s éa'|title
'hELLO wORLD'|capitalize ~ ''|capitalize ~ 'éA'|capitalize ~ 5|capitalize
nums|join ~ nums|join(', ') ~ mixed|join('-') ~ name|join('.') ~ d|join(',') ~ missing|join('x')
users|join(', ', attribute='name') ~ users|map(attribute='age')|join(d='+')
5|join
nums|join(5)
missing|default('x') ~ missing|d ~ none|default('x') ~ none|default('x', true) ~ ''|d('e', boolean=true) ~ 0|default(5) ~ d.z|default('q')
missing.x|default('q')
d|tojson
mixed|tojson ~ nested|tojson ~ none|tojson ~ true|tojson ~ 1.0|tojson ~ 1e20|tojson ~ 'é"\n\u2028/<>&\x01\x7f'|tojson ~ (1, 2)|tojson ~ []|tojson ~ {}|tojson
deep|tojson(indent=2)
[1, [], {}, [2]]|tojson(indent=4)
d|tojson(indent=0)
d|tojson(indent='--')
d|tojson(indent=-1)
d|tojson(indent=true)
d|tojson(separators=(',', ':')) ~ [1, 2]|tojson(separators=[', ', ': '])
d|tojson(indent=2, separators=(',', ': '))
d|tojson(sort_keys=true)
{'é': '😀', 'a': '\x7f'}|tojson(ensure_ascii=true)
{'é': '😀'}|tojson(true)
{1: 1, true: 2, none: 3, 1.5: 4}|tojson
{2: 1, 'a': 1}|tojson(sort_keys=true)
{(1, 2): 1}|tojson
missing|tojson
d.items()|tojson
range(3)|tojson
namespace()|tojson
d|tojson(indent='a', foo=1)
d|tojson|safe
[1e999, -1e999]|tojson
'aXbXc'|replace('X', '-') ~ 'aXbXc'|replace('X', '-', 1) ~ 'abc'|replace('', '.') ~ 5|replace(5, 6) ~ 'aaa'|replace('a', '', count=2)
name|replace('A')
nums|first ~ nums|last ~ name|first ~ name|last ~ uni|last ~ d|first ~ d|last ~ range(3)|last ~ [1]|first
none_list|first ~ none_list|last ~ ''|first ~ ''|last ~ missing|first ~ missing|last
(none_list|first) is defined
n|first
(nums|map('string'))|last
(nums|map('string'))|first
nums|list ~ name|list ~ d|list ~ range(3)|list ~ missing|list ~ d.items()|list
n|list
none|list
d|dictsort ~ d|dictsort(true) ~ d|dictsort(false, 'value') ~ d|dictsort(reverse=true) ~ d|dictsort(by='value', reverse=true)
d|dictsort(by='x')
nums|dictsort
nums|sort ~ words|sort ~ words|sort(case_sensitive=true) ~ nums|sort(reverse=true) ~ nums|sort(true)
users|sort(attribute='name')|map(attribute='name')|join(',') ~ users|sort(attribute='age,name')|map(attribute='name')|list ~ users|sort(attribute='age', reverse=true)|map(attribute='name')|list
mixed|sort
[none, none]|sort
[3, 1.5, true]|sort
d|sort ~ 'hello'|sort ~ missing|sort
users|sort
nums|reverse|list ~ name|reverse ~ uni|reverse ~ d|reverse|list ~ range(3)|reverse|list ~ d.items()|reverse|list ~ missing|reverse|list ~ (nums|map('abs')|reverse)
n|reverse
['a', 'A', 'b', 'a']|unique|list ~ [1, 1.0, true, 2]|unique|list ~ ['a', 'A']|unique(case_sensitive=true)|list ~ users|unique(attribute='age')|map(attribute='name')|list
[[1], [1]]|unique|list
nums|map('string')|list ~ words|map('upper')|join(' ')
nums|map('nope')|list
nums|map('nope') is defined
users|map(attribute='name')|list ~ users|map(attribute='tags.0', default='-')|list ~ users|map(attribute='tags')|list ~ users|map(attribute='admin')|list
users|map(attribute='name', foo=1)|list
nums|map|list
words|map('replace', 'p', 'P')|list ~ words|map('default', 'x')|list ~ nums|map('round', 1, method='floor')|list
words|map('truncate', 3)|list
'abc'|map('upper')|join
missing|map('upper')|list
n|map('upper')|list
nums|select('odd')|list ~ nums|select|list ~ mixed|select|list ~ nums|select('gt', 1)|list ~ mixed|select('string')|list ~ mixed|reject('none')|list ~ nums|reject('odd')|list ~ mixed|reject|list
nums|select('divisibleby', 3)|list ~ nums|select('in', [1, 2])|list ~ words|select('eq', 'fig')|list ~ nums|select('==', 1)|list ~ nums|select('>=', 2)|list
nums|select('nope')|list
users|selectattr('admin')|map(attribute='name')|list ~ users|selectattr('age', 'eq', 31)|map(attribute='name')|list ~ users|rejectattr('admin')|list|length ~ users|rejectattr('admin', 'defined')|list|length ~ users|selectattr('tags', 'defined')|list|length ~ users|selectattr('name', 'in', ['Al', 'bob'])|map(attribute='name')|join
users|selectattr|list
users|selectattr('age', 'nope')|list
users|selectattr('x.y', 'defined')|list
users|selectattr('age')|length
nums|string ~ n|string|length ~ none|string
'42'|int ~ '42.9'|int ~ 'x'|int ~ 'x'|int(9) ~ '0x1f'|int(base=16) ~ '1f'|int(0, 16) ~ '101'|int(base=2) ~ 3.9|int ~ -3.9|int ~ true|int ~ none|int ~ ' 7 '|int ~ '1_000'|int ~ '1e3'|int ~ '-5'|int ~ '+5'|int ~ ''|int ~ []|int(3)
missing|int
'0b11'|int(base=0) ~ '010'|int(base=0) ~ '10'|int(base=0) ~ '_1'|int ~ '1__0'|int ~ 'inf'|int ~ 'nan'|int
1e999|int
'3.5'|float ~ '1e3'|float ~ 'x'|float ~ 'x'|float(1.5) ~ 3|float ~ 'inf'|float ~ 'nan'|float ~ '-Infinity'|float ~ none|float ~ ' 2.5 '|float ~ '1_0.5'|float ~ '.5'|float ~ '5.'|float ~ '0x10'|float
missing|float
-5|abs ~ 5.5|abs ~ (-5)|abs ~ (-2.5)|abs ~ true|abs
'a'|abs
missing|abs
42.55|round ~ 42.55|round(1) ~ 42.55|round(1, 'floor') ~ 42.51|round(1, 'ceil') ~ 42|round ~ 2.5|round ~ 3.5|round ~ -2.5|round ~ 0.125|round(2) ~ 1234|round(-2) ~ 1250|round(-2) ~ 1350|round(-2) ~ 1234.5|round(-2) ~ 5|round(2) ~ 2.675|round(2) ~ 42|round(0, 'ceil') ~ 42.1|round(0, 'ceil') ~ true|round
'a'|round
2.5|round(method='nope')
42.55|round|int
'a\nb\n\nc'|indent ~ '|' ~ 'a\nb'|indent(2) ~ '|' ~ 'a\nb'|indent(2, true) ~ '|' ~ 'a\n\nb'|indent(2, first=true, blank=true) ~ '|' ~ 'a\nb'|indent('> ') ~ '|' ~ ''|indent ~ '|' ~ 'a\n'|indent(2) ~ '|' ~ multi|indent(width=1)
5|indent
missing|indent
'<b>'|safe ~ '<b>'|e ~ html|escape ~ 5|e ~ ('<'|e)|e ~ ('<'|e)|forceescape ~ none|e
('<b>'|safe) + '<i>' ~ ('<i>' + ('<b>'|safe)) ~ ('<b>'|safe) * 2 ~ '%s' % ('<b>'|safe) ~ ('<b>%s</b>'|safe) % '<x>' ~ ('a<b'|e)|upper ~ ('a<b'|e)[0:2]
[('<b>'|safe)]
('<b>'|safe)|string ~ ('a'|safe).join(['<', '>']) ~ ('a<'|safe).replace('a', '<') ~ ('{}'|safe).format('<')
nums|min ~ nums|max ~ words|min ~ words|max ~ words|max(case_sensitive=true) ~ users|max(attribute='age') ~ [1, 2.5, true]|max ~ 'hello'|max ~ d|min
none_list|min ~ (none_list|max) is defined
mixed|max
nums|sum ~ users|sum(attribute='age') ~ nums|sum(start=10) ~ [0.1, 0.2, 0.3]|sum ~ none_list|sum ~ [[1], [2]]|sum(start=[]) ~ missing|sum ~ [true, true]|sum
words|sum
words|sum(start='')
[1, 2, 3, 4, 5]|batch(2)|list ~ [1, 2, 3]|batch(2, 'x')|list ~ []|batch(2)|list ~ 'abc'|batch(2)|map('join')|list
[1, 2, 3, 4, 5]|slice(2)|list ~ [1, 2, 3, 4]|slice(3, 'x')|list ~ []|slice(2)|list
[1]|slice(0)|list
'hello big  world_x é-ü'|wordcount ~ ''|wordcount
'%s is %d years' % ('x', 5) ~ '%5.2f|%-5s|%05d|%x|%X|%o|%e|%g|%r|%%' % (3.14159, 'ab', 42, 255, 255, 8, 12345.678, 0.0001, 'q')
'%s'|format('a') ~ '%s %s'|format(1, none) ~ '%(a)s-%(b)d'|format(a=1, b=2) ~ 'plain'|format
'%(x)s %(y)s' % {'x': 1, 'y': [2]} ~ '%s' % [1] ~ '%s' % {'a': 1} ~ '%s' % missing ~ 'x' % [] ~ '%s' % none
'%d' % 'a'
'%d' % 3.9 ~ '%+d % d' % (5, 5) ~ '%.3s' % 'abcdef' ~ '%5s|' % 'é' ~ '%*d' % (5, 3) ~ '%.2d' % 5 ~ '%c' % 'x' ~ '%i' % true
'%s %s' % 'a'
'%s' % (1, 2)
'a' % 5
'%q' % 1
'%'  % 1
'%f %F %E %G' % (1.5, 1.5, 1.5, 1e10) ~ '%.0f %.1f' % (2.5, 0.25) ~ '%g %g %g' % (100000, 1000000, 1e-5) ~ '%#x %#o' % (255, 8) ~ '%-8.3f|' % 3.14159 ~ '%08.3f' % -3.14159
'{} {}'.format(1, 'a') ~ '{0} {1} {0}'.format('x', 'y') ~ '{a} {b}'.format(a=1, b=none) ~ '{{}} {}'.format(1) ~ '{!r} {!s}'.format('q', 'q') ~ '{0[a]} {0.a} {1[0]}'.format(d, nums)
'{:>5}|{:<5}|{:^5}|{:*^7}|{:05d}|{:+d}|{:,}|{:_}|{:x}|{:#x}|{:b}|{:o}'.format('a', 'b', 'c', 'd', 42, 5, 1234567, 1234567, 255, 255, 5, 8)
'{:.2f}|{:8.3f}|{:e}|{:g}|{:%}|{:.1%}|{:,.2f}|{:.3}|{:.3s}|{:010.2f}|{: d}'.format(3.14159, 2.5, 12345.0, 0.5, 0.25, 0.256, 12345.678, 2.71828, 'abcdef', -3.14159, 7)
'{:.3}|{:.2}|{:.1}|{:5}|{:5}|{:<5}|{:=5}'.format(1234.5, 100.0, 0.5, true, 1.5, 3, -3)
'{:{}}|{:{w}}'.format('a', 5, 'b', w=3)
'{} {0}'.format(1)
'{}'.format()
'{x}'.format(y=1)
'{'.format(1)
'}'.format(1)
'{:d}'.format('a')
'{:s}'.format(1)
'{:5}'.format([1])
'{:.2d}'.format(5)
'{}'.format(missing) ~ '{}'.format([1, 'a'])
'{0.__class__}'.format(1) ~ '{0.x}'.format(d)
'a,b,,c'.split(',') ~ 'a b  c '.split() ~ 'a,b,c'.split(',', 1) ~ ' a b '.split(' ') ~ ''.split() ~ ''.split(',') ~ 'a  b c'.split(none, 1) ~ 'abc'.split('') is defined
'a<x>b<x>c'.split('<x>')[-1] ~ 'a,b,c'.rsplit(',', 1) ~ 'a b c '.rsplit(none, 1) ~ 'a b'.rsplit() ~ ',a,'.rsplit(',') ~ 'x'.split(sep='x', maxsplit=1)
'a\u3000b\x85c'.split()
'abc'.split(1)
'  ab '.strip() ~ '|' ~ '  ab '.lstrip() ~ '|' ~ '  ab '.rstrip() ~ '|' ~ 'xyaxy'.strip('xy') ~ '|' ~ 'xyaxy'.lstrip('xy') ~ '|' ~ 'éaé'.strip('é') ~ '|' ~ '\n\ta\n'.strip() ~ '|' ~ ''.strip() ~ '|' ~ ' a '.strip(none)
'abc'.strip(5)
'hello'.startswith('he') ~ 'hello'.startswith(('x', 'h')) ~ 'hello'.endswith('lo') ~ 'hello'.startswith('l', 2) ~ 'hello'.endswith('l', 0, 4) ~ 'a'.startswith('') ~ ''.startswith('a') ~ 'a'.startswith('', 5)
'hello'.startswith(1)
'abc'.upper() ~ 'ABC'.lower() ~ 'aBc'.swapcase() ~ 'abc def'.title() ~ 'ABC'.capitalize() ~ 'they\'re'.title()
'abcabc'.find('c') ~ 'abcabc'.find('x') ~ 'abcabc'.rfind('c') ~ 'abcabc'.index('b') ~ 'abcabc'.find('c', 3) ~ 'abcabc'.find('c', 0, 2) ~ 'abc'.find('') ~ 'abc'.find('', 5) ~ uni.find('世') ~ 'abc'.find('b', -2) ~ uni.rfind('界') ~ 'abab'.rindex('ab')
'abc'.index('x')
'banana'.count('an') ~ 'aaa'.count('aa') ~ 'abc'.count('') ~ 'banana'.count('a', 2) ~ 'banana'.count('a', 2, 4)
'a-b-c'.replace('-', '+') ~ 'a-b-c'.replace('-', '+', 1) ~ 'abc'.replace('', '.') ~ 'aaa'.replace('aa', 'b') ~ 'abc'.replace('x', 'y')
'abc'.replace('a')
'abc'.replace(1, 2)
', '.join(['a', 'b']) ~ ''.join([]) ~ '-'.join('abc') ~ ', '.join(d) ~ '/'.join(words|map('upper'))
', '.join([1, 2])
','.join([missing])
'a\nb\r\nc\n'.splitlines() ~ 'a\nb'.splitlines(true) ~ ''.splitlines() ~ 'a\x0bb\x0cc\x1cd\u2028e\x85f'.splitlines() ~ 'a\n\nb'.splitlines(keepends=true)
'a-b-c'.partition('-') ~ 'a-b-c'.rpartition('-') ~ 'abc'.partition('-') ~ 'abc'.rpartition('-')
'abc'.partition('')
'prefix_x'.removeprefix('prefix_') ~ 'x_suffix'.removesuffix('_suffix') ~ 'abc'.removeprefix('x') ~ 'aa'.removesuffix('')
'ab'.center(6) ~ '|' ~ 'ab'.center(5, '*') ~ '|' ~ 'abc'.center(6) ~ '|' ~ 'ab'.ljust(4) ~ '|' ~ 'ab'.rjust(4, '.') ~ '|' ~ 'é'.center(2) ~ '|' ~ 'abc'.ljust(1)
'ab'.center(5, 'xx')
'42'.zfill(5) ~ '-42'.zfill(5) ~ '+1'.zfill(4) ~ ''.zfill(2) ~ 'abc'.zfill(2)
'ab'|center(6) ~ '|' ~ 5|center(3) ~ '|' ~ 'abcdef'|center(3)
'123'.isdigit() ~ '12a'.isdigit() ~ ''.isdigit() ~ '²'.isdigit() ~ '²'.isdecimal() ~ 'abc'.isalpha() ~ 'é世'.isalpha() ~ 'a1'.isalnum() ~ 'a '.isalnum() ~ ' \t'.isspace() ~ ''.isspace() ~ 'abc'.islower() ~ 'ABC'.isupper() ~ 'A1'.isupper() ~ '1'.isupper() ~ 'Ab'.islower() ~ 'a\n'.isprintable() ~ ''.isprintable() ~ 'é'.isascii() ~ 'a'.isascii()
'abc'.nope()
'abc'.nope
'foo bar baz qux'|truncate(9) ~ '|' ~ 'foo bar baz qux'|truncate(9, true) ~ '|' ~ 'foo bar baz qux'|truncate(11) ~ '|' ~ 'foo bar baz qux'|truncate(11, false, '...', 0) ~ '|' ~ 'foobarbazquxquux'|truncate(5, leeway=0)
'abc'|truncate(1)
strftime_now('%Y-%m-%d %H:%M:%S') ~ strftime_now('%d %b %Y') ~ strftime_now('%B %e, %A') ~ strftime_now('%j %U %p %I %y %%') ~ strftime_now('')
strftime_now()
raise_exception('Roles must alternate')
raise_exception()
raise_exception('n is ' ~ n)
raise_exception(5)
nums|attr('x')|default('-')
nums|length > 2 and nums[0] == 3
(nums|length) + 1
nums|length + 1
-n|abs
- n|string|length
not n|string == '7'
'a' ~ 'b'|upper
('a' ~ 'b')|upper
'a' + 'b'|upper
1 + 1 ~ 1 + 1
2 * 3 ~ 4
1 ~ 2 * 3
'x' if nums|length == 3 else 'y'
nums|map('string')|map('length')|sum
users|map(attribute='name')|map('lower')|select('in', ['zoe', 'al'])|sort|join('+')
users[0].name.upper().lower()[0:2]|upper
users[-1]['tags']|length
(users|first).name ~ (users|last)['age']
users|selectattr('name', 'equalto', 'bob')|list|first|attr('age')|default(1)
quote ~ tab ~ [quote, tab]
uni|list|length ~ uni|tojson
yes|string ~ yes|tojson ~ yes ~ [yes, no, nothing]
big ~ [pi, 1e-7, 123456789.123]
d.items()|list|tojson
d.items()|map('first')|list ~ d.items()|map('last')|sum
d|length ~ d.items()|length ~ d.keys()|first
(d|list)[0] ~ (d.values()|list)[-1]
range(5)|select('odd')|map('string')|join(',')
[1, 2, 3]|map('float')|list ~ ['1', 'x']|map('int', default=-1)|list
dict(d, z=9) ~ dict(d.items())
name.format ~ 1 if false
f(1)
d(1)
'a'(1)
n()
range(*[1, 3]) ~ dict(**{'a': 1}) ~ '{} {}'.format(*nums[:2]) ~ range(*(1, 5), *[2])
range(1, **{'x': 1})
range(**[1])
dict(a=1, a=2)
dict(a=1, **{'a': 2})
name|upper()|lower
name | upper | replace ( 'A' , 'B' )
name|d.x
{'a': {'b': [1, 2, {'c': 'deep'}]}}.a.b[2].c
{}.x ~ [][0]
{'a': 1}.a ~ ['x', 'y'].0 ~ ('p', 'q')[1] ~ 'str'[0]
[[1, 2], [3]]|map('length')|list ~ [[1, 2], [3]]|map('first')|list ~ [[3, 1], [2]]|map('sort')|list
[1, [2, 3]]|string|length
9007199254740993 == 9007199254740993.0 ~ 9223372036854775807 ~ -9223372036854775807 - 1
9007199254740993 / 3 ~ 10 ** 15 ~ 10 ** -2 ~ 0 ** 0 ~ 0.0 ** 0
0 ** -1
true ** 2 ~ true * 'a' ~ false + 1.5
'abc' * 2.0
[1, 2, 3][true] ~ {1: 'a'}[true] ~ {1: 'a'}[1.0]
1 is sameas 1.0
'ab' 'cd'|upper
"tab\there" ~ 'nl\\n'
[1,2,3,][2] ~ {'a':1,}['a'] ~ (1,2,)[1]
{ }
[ ]
"{{ not a tag }}" ~ '{% neither %}' ~ '}}'
{'a':{'b':1}}
{'x': 5}.x }
'unterminated
(1 + 2
1 +
1 2
a b
* 1
1 ! 2
$x
`x`
1 === 1
1 <> 2
a..b
a.
a.'b'
a[
a[]
a|
a|5
a is
a is 5
x = 5
lambda: 1
a if
if
for
a.b.c()
nums[0, 1]
nums[]
""".strip("\n").split("\n")

def cases():
    result = [("{{ " + e + " }}", CONTEXT) for e in EXPRESSIONS]
    result += [(s, CONTEXT) for s in template_golden_statements.STATEMENTS]
    return result
