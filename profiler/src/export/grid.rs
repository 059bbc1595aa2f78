//! Lays texts out in columns within a width.
//!
//! Must not know what the texts mean.

use crate::fields::Column;
use crate::terminal::{Align, fit, truncate, width};

/// A column's head.
#[derive(Clone, Debug)]
pub struct Head {
    /// What stands above it.
    pub title: &'static str,
    /// Columns of the terminal that it keeps even when the line is too long.
    pub least: usize,
    /// Whether it may be cut to `least`; others show their texts whole.
    pub yields: bool,
    /// Where text stands in it.
    pub align: Align,
}

impl Head {
    /// A head for numbers.
    pub fn number(title: &'static str) -> Head {
        Head { title, least: 0, yields: false, align: Align::Right }
    }

    /// A head for names, cut down to `least` columns where the line is too long.
    pub fn name(title: &'static str, least: usize) -> Head {
        Head { title, least, yields: true, align: Align::Left }
    }

    /// The head of a field.
    pub fn of(column: &Column) -> Head {
        Head { title: column.header, least: column.width, yields: column.grows, align: column.align }
    }
}

/// Lines of texts under heads.
#[derive(Clone, Debug)]
pub struct Grid {
    heads: Vec<Head>,
    lines: Vec<Vec<String>>,
}

impl Grid {
    /// A grid without lines.
    pub fn new(heads: Vec<Head>) -> Grid {
        Grid { heads, lines: Vec::new() }
    }

    /// Appends a line, one text for each head.
    pub fn push(&mut self, line: Vec<String>) {
        self.lines.push(line);
    }

    /// The grid, heads first, at most `max_width` columns wide.
    pub fn render(&self, max_width: usize) -> String {
        let widths = self.widths(max_width);
        let heads: Vec<String> = self.heads.iter().map(|head| head.title.to_string()).collect();
        std::iter::once(&heads).chain(&self.lines).map(|line| self.line(line, &widths, max_width)).collect()
    }

    fn line(&self, texts: &[String], widths: &[usize], max_width: usize) -> String {
        let cells = self.heads.iter().zip(texts).zip(widths);
        let cells: Vec<String> = cells.map(|((head, text), width)| fit(text, *width, head.align)).collect();
        truncate(cells.join(" ").trim_end(), max_width) + "\n"
    }

    /// What each column needs; if that is too much, the widest of those that yield give way one by one.
    fn widths(&self, max_width: usize) -> Vec<usize> {
        let mut widths: Vec<usize> = (0..self.heads.len()).map(|column| self.needed(column)).collect();
        while widths.iter().sum::<usize>() + widths.len().saturating_sub(1) > max_width {
            let can = |(column, wide): &(usize, &usize)| {
                self.heads.get(*column).is_some_and(|head| head.yields && **wide > head.least)
            };
            let widest = widths.iter().enumerate().filter(can).max_by_key(|(_, wide)| **wide);
            let Some(column) = widest.map(|(column, _)| column) else { break };
            widths[column] -= 1;
        }
        widths
    }

    fn needed(&self, column: usize) -> usize {
        let texts = self.lines.iter().filter_map(|line| line.get(column)).map(|text| width(text));
        let title = self.heads.get(column).map_or(0, |head| width(head.title));
        texts.max().unwrap_or(0).max(title)
    }
}

/// The text broken at spaces into lines of at most `max_width` columns; all but the first begin with `indent` spaces.
pub fn wrap(text: &str, indent: usize, max_width: usize) -> String {
    let body = text.trim_start_matches(' ');
    let mut used = text.len() - body.len();
    let mut out = " ".repeat(used);
    for (index, word) in body.split(' ').enumerate() {
        if index > 0 && used > indent && used + 1 + width(word) > max_width {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            used = indent;
        } else if index > 0 {
            out.push(' ');
            used += 1;
        }
        let word = truncate(word, max_width.saturating_sub(used).max(1));
        used += width(&word);
        out.push_str(&word);
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_yield_and_numbers_do_not() {
        let mut grid = Grid::new(vec![Head::name("LOCK", 5), Head::number("N"), Head::name("CALLER", 6)]);
        grid.push(vec!["inode->i_rwsem".into(), "123456".into(), "ext4_file_write_iter".into()]);
        assert_eq!(
            grid.render(80),
            "LOCK                N CALLER\ninode->i_rwsem 123456 ext4_file_write_iter\n"
        );
        for line in grid.render(30).lines() {
            assert!(width(line) <= 30);
        }
        assert!(grid.render(30).contains(" 123456 "));
    }

    #[test]
    fn long_lines_wrap_with_their_indent() {
        assert_eq!(wrap("aa bb cc dd", 2, 6), "aa bb\n  cc\n  dd\n");
        assert_eq!(wrap("  x yy", 2, 80), "  x yy\n");
        assert_eq!(wrap("", 2, 80), "\n");
    }
}
