//! Measures how long functions are (non-blank lines from `fn` to the closing brace; code under `#[cfg(test)]` and
//! in tests/ does not count). Must not judge single functions: clippy's too_many_lines does.

use std::fmt;

use super::SourceFile;

const MEDIAN_LIMIT: usize = 10;
const P90_LIMIT: usize = 35;

/// The lengths of all functions of the repository.
#[derive(Debug, Default)]
pub struct Lengths {
    /// Lengths and where, shortest first.
    sorted: Vec<(usize, String)>,
}

impl Lengths {
    /// Measures all Rust files.
    pub fn of(files: &[SourceFile]) -> Self {
        let is_test = |file: &SourceFile| file.path.components().any(|part| part.as_os_str() == "tests");
        let measured = files.iter().filter(|file| file.is_rust() && !is_test(file));
        let mut sorted: Vec<(usize, String)> = measured.flat_map(in_file).collect();
        sorted.sort();
        Self { sorted }
    }

    /// What is beyond the limits.
    pub fn complaints(&self) -> Vec<String> {
        let limits = [("median", self.quantile(50), MEDIAN_LIMIT), ("p90", self.quantile(90), P90_LIMIT)];
        let beyond = limits.into_iter().filter(|(_, is, limit)| is > limit);
        beyond
            .map(|(what, is, limit)| format!("{what} function length is {is} lines, the limit is {limit}"))
            .collect()
    }

    fn quantile(&self, percent: usize) -> usize {
        let last = self.sorted.len().saturating_sub(1);
        self.sorted.get(last * percent / 100).map_or(0, |(length, _)| *length)
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (median, p90) = (self.quantile(50), self.quantile(90));
        write!(f, "functions: {}, median {median} lines, p90 {p90}", self.sorted.len())?;
        match self.sorted.last() {
            Some((length, place)) => write!(f, ", longest {length} ({place})"),
            None => Ok(()),
        }
    }
}

fn in_file(file: &SourceFile) -> Vec<(usize, String)> {
    let code = without_tests(&file.code);
    let place = |name: &str| format!("{} in {}", name, file.path.display());
    functions(&code).into_iter().map(|(name, length)| (length, place(&name))).collect()
}

/// Names and lengths of the functions in masked code.
fn functions(code: &str) -> Vec<(String, usize)> {
    let starts = code.match_indices("fn ").filter(|(at, _)| !code[..*at].ends_with(word));
    starts.filter_map(|(at, _)| function(&code[at..])).collect()
}

fn function(code: &str) -> Option<(String, usize)> {
    let name: String = code[3..].trim_start().chars().take_while(|c| word(*c)).collect();
    let open = body(code)?;
    let close = open + block(&code[open..])?;
    let length = code[..close].lines().filter(|line| !line.trim().is_empty()).count();
    (!name.is_empty()).then_some((name, length))
}

/// Where the body's brace is; `None` for a declaration that ends with `;` (the one in `[u8; 4]` does not count).
fn body(code: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '{' if depth == 0 => return Some(at),
            ';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// The length of the block that opens at the start of `code`.
fn block(code: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in code.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at + 1);
        }
    }
    None
}

/// `code` up to, between and after its `#[cfg(test)]` items.
pub fn without_tests(code: &str) -> String {
    let mut kept = String::new();
    let mut rest = code;
    while let Some(at) = rest.find("#[cfg(test)]") {
        kept.push_str(&rest[..at]);
        rest = after_item(&rest[at..]);
    }
    kept + rest
}

/// What follows the attribute's item: its block, or its semicolon.
fn after_item(item: &str) -> &str {
    let attribute = "#[cfg(test)]".len();
    let end = match body(&item[attribute..]) {
        Some(open) => block(&item[attribute + open..]).map(|length| attribute + open + length),
        None => item.find(';').map(|at| at + 1),
    };
    end.map_or("", |end| &item[end..])
}

fn word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn declarations_types_and_blank_lines_do_not_count() {
        let code = "trait T { fn declared(&self) -> [u8; 4]; }\nfn f(g: fn(u8) -> u8) -> u8 {\n\n  g(1)\n}\n";
        assert_eq!(functions(code), [("f".to_owned(), 3)]);
    }

    #[test]
    fn inner_functions_count_on_their_own() {
        let code =
            "const fn outer<const N: usize>() where [u8; N]: Sized {\n  fn inner() {}\n  if x { y }\n}";
        assert_eq!(functions(code), [("outer".to_owned(), 4), ("inner".to_owned(), 1)]);
    }

    #[test]
    fn test_items_are_cut_out() {
        let code =
            "fn a() {}\n#[cfg(test)]\nuse x::y;\nfn b() {}\n#[cfg(test)]\nmod tests { fn c() {} }\nfn d() {}";
        let names: Vec<String> = functions(&without_tests(code)).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["a", "b", "d"]);
    }

    #[test]
    fn limits_are_enforced() {
        let long = format!("//! x\nfn f() {{\n{}}}\n", "  x();\n".repeat(40));
        let lengths = Lengths::of(&[example("src/a.rs", &long)]);
        assert_eq!(lengths.complaints().len(), 2);
        assert_eq!(lengths.to_string(), "functions: 1, median 42 lines, p90 42, longest 42 (f in src/a.rs)");
        assert!(Lengths::of(&[example("tests/a.rs", &long)]).complaints().is_empty());
    }
}
