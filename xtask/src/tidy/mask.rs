//! Blanks out what is not code in Rust source (comments, strings, characters), so that the rules can look for words
//! and braces. Line numbers and columns stay. Must not grow into a parser.

/// `source` with every character of a comment or literal replaced by a space; newlines stay.
pub fn code_only(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut masked = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let length = skipped(&chars, at);
        match length {
            0 => masked.push(chars[at]),
            _ => masked.extend(chars[at..at + length].iter().map(|c| if *c == '\n' { '\n' } else { ' ' })),
        }
        at += length.max(1);
    }
    masked
}

/// How many characters from `at` on are not code (0: this one is).
fn skipped(chars: &[char], at: usize) -> usize {
    let rest = &chars[at..];
    match (rest[0], rest.get(1)) {
        ('/', Some('/')) => rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()),
        ('/', Some('*')) => block_comment(rest),
        ('"', _) => quoted(rest, '"'),
        ('r', Some('"' | '#')) if !in_a_word(chars, at) => raw_string(rest),
        ('\'', _) => character(rest),
        _ => 0,
    }
}

/// Whether the `r` here is the end of a word rather than a raw string's mark. `br` and `cr` are marks, too.
fn in_a_word(chars: &[char], at: usize) -> bool {
    let before = |n: usize| at.checked_sub(n).map(|i| chars[i]);
    let word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    match before(1) {
        Some('b' | 'c') => word(before(2)),
        other => word(other),
    }
}

/// They nest.
fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at < rest.len() {
        match (rest[at], rest.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at.min(rest.len())
}

fn quoted(rest: &[char], quote: char) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

fn raw_string(rest: &[char]) -> usize {
    let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
    if rest.get(1 + hashes) != Some(&'"') {
        // A raw identifier (r#type).
        return 0;
    }
    let mut end = vec!['"'];
    end.resize(1 + hashes, '#');
    let body = &rest[hashes + 2..];
    let closed = body.windows(end.len()).position(|window| window == end);
    closed.map_or(rest.len(), |at| hashes + 2 + at + end.len())
}

/// `'x'` and `'\n'` are characters, `'a` alone is a lifetime.
fn character(rest: &[char]) -> usize {
    match (rest.get(1), rest.get(2)) {
        (Some('\\'), _) => quoted(rest, '\''),
        (Some(_), Some('\'')) => 3,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn squeezed(source: &str) -> String {
        code_only(source).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_go_and_nest() {
        assert_eq!(squeezed("a // crate::x\nb /* { /* } */ c */ d"), "a b d");
    }

    #[test]
    fn literals_go_and_lifetimes_stay() {
        assert_eq!(squeezed(r#"f("{ \" }", '{', '\'', b'}', "x")"#), "f( , , , b , )");
        assert_eq!(squeezed("fn f<'a>(x: &'a str) {}"), "fn f<'a>(x: &'a str) {}");
        assert_eq!(
            squeezed("let s = r#\"{ \" \\\"#; let t = br\"}\"; r#type"),
            "let s = ; let t = b ; r#type"
        );
        assert_eq!(squeezed("var\"x\" x"), "var x");
    }

    #[test]
    fn lines_stay_where_they_are() {
        let source = "a /* x\ny */ b\n\"p\nq\" c\n// end";
        assert_eq!(code_only(source).lines().count(), source.lines().count());
        assert_eq!(code_only("\"unclosed"), " ".repeat(9));
    }
}
