//! Makes untrusted text safe for a terminal, and fits text into columns.
//!
//! Must not colour, query or write to a terminal, and must not drop a byte silently: what is not printable becomes a
//! visible escape. A backslash passes unchanged, so that escaping twice changes nothing.

use std::fmt::Write;

/// Bytes from outside (a process's name, say) as text without control characters. Invalid UTF-8 reads `\xNN`.
pub fn printable(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        push_printable(&mut out, chunk.valid());
        for byte in chunk.invalid() {
            push_byte(&mut out, *byte);
        }
    }
    out
}

/// The same for text that is UTF-8 already.
pub fn printable_str(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    push_printable(&mut out, text);
    out
}

fn push_printable(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '\0'..='\x1f' | '\x7f' => push_byte(out, c as u8),
            c if is_unsafe(c) => push_code(out, c),
            c => out.push(c),
        }
    }
}

fn push_byte(out: &mut String, byte: u8) {
    // Writing to a string cannot fail.
    let _ = write!(out, "\\x{byte:02x}");
}

fn push_code(out: &mut String, c: char) {
    let _ = write!(out, "\\u{{{:x}}}", c as u32);
}

/// C1 controls, line separators, and what changes direction or is invisible: Unicode's bidi and format characters
/// (Unicode Standard Annex 9; CVE-2021-42574 shows what they are good for).
fn is_unsafe(c: char) -> bool {
    matches!(c,
        '\u{80}'..='\u{9f}'
        | '\u{ad}'
        | '\u{61c}'
        | '\u{115f}'..='\u{1160}'
        | '\u{180e}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e0fff}')
}

/// Columns that a text takes, as terminals commonly draw it: wide East Asian characters and emoji take two.
pub fn width(text: &str) -> usize {
    text.chars().map(char_width).sum()
}

fn char_width(c: char) -> usize {
    match c as u32 {
        0x300..=0x36f | 0x20d0..=0x20ff => 0,
        0x1100..=0x115f | 0x2e80..=0xa4cf | 0xac00..=0xd7a3 | 0xf900..=0xfaff => 2,
        0xfe30..=0xfe6f | 0xff00..=0xff60 | 0xffe0..=0xffe6 => 2,
        0x1f300..=0x1faff | 0x2_0000..=0x3_fffd => 2,
        _ => 1,
    }
}

/// The text in at most `columns` columns; `…` stands for what was cut off its end.
pub fn truncate(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_string();
    }
    let mut out = String::new();
    let mut used = 0;
    for c in text.chars() {
        used += char_width(c);
        if used + 1 > columns {
            break;
        }
        out.push(c);
    }
    if columns > 0 {
        out.push('…');
    }
    out
}

/// Where text stands in its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// At the left edge: names.
    Left,
    /// At the right edge: numbers.
    Right,
}

/// The text in exactly `columns` columns: cut or filled with spaces.
pub fn fit(text: &str, columns: usize, align: Align) -> String {
    let text = truncate(text, columns);
    let fill = " ".repeat(columns.saturating_sub(width(&text)));
    match align {
        Align::Left => text + &fill,
        Align::Right => fill + &text,
    }
}

/// Says something to the user on standard error. Nobody may be listening any more, and that must not end us.
pub fn say(message: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "lockscope: {message}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_become_visible() {
        assert_eq!(printable(b"\x1b[31mevil;\xff"), "\\x1b[31mevil;\\xff");
        assert_eq!(printable(b"a\nb\tc\x7f\0"), "a\\x0ab\\x09c\\x7f\\x00");
        assert_eq!(printable("c1 \u{9b}31m".as_bytes()), "c1 \\u{9b}31m");
        assert_eq!(printable_str("\u{202e}txt\u{2066}\u{200d}"), "\\u{202e}txt\\u{2066}\\u{200d}");
        assert_eq!(printable("größe 日本".as_bytes()), "größe 日本");
    }

    #[test]
    fn every_byte_value_is_harmless_and_escaping_twice_changes_nothing() {
        for byte in 0..=255u8 {
            let once = printable(&[byte, b'x', byte]);
            assert!(!once.chars().any(char::is_control), "{byte}: {once:?}");
            assert_eq!(printable_str(&once), once);
        }
    }

    #[test]
    fn text_fits_its_columns() {
        assert_eq!(truncate("i_rwsem", 7), "i_rwsem");
        assert_eq!(truncate("i_rwsem", 5), "i_rw…");
        assert_eq!(truncate("日本語", 4), "日…");
        assert_eq!(truncate("abc", 0), "");
        assert_eq!(fit("ab", 4, Align::Right), "  ab");
        assert_eq!(fit("日", 4, Align::Left), "日  ");
        for n in 0..12 {
            assert_eq!(width(&fit("a日b本c語", n, Align::Left)), n);
        }
    }
}
