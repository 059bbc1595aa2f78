//! The panic lint: a panic that stays in the object links fine and then fails in the verifier with a message that
//! says nothing. Must not be weakened to a warning.

use anyhow::{Context as _, Result, bail};
use object::{Object as _, ObjectSymbol as _};

const PANICS: [&str; 2] = ["panick", "unwrap_failed"];

/// Fails, naming them, if the object holds functions that panic.
pub fn no_panics(elf: &[u8]) -> Result<()> {
    let file = object::File::parse(elf).context("the built object is no ELF file")?;
    let names = file.symbols().filter_map(|symbol| symbol.name().ok().map(str::to_owned));
    let found: Vec<String> = names.filter(|name| is_panic(name)).collect();
    if !found.is_empty() {
        bail!(
            "the BPF object can panic (unchecked index, division, ilog2, unwrap); the verifier would refuse it:\n  {}",
            found.join("\n  ")
        );
    }
    Ok(())
}

fn is_panic(symbol: &str) -> bool {
    PANICS.iter().any(|part| symbol.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mangled_panics_are_found() {
        assert!(is_panic("_ZN4core9panicking18panic_bounds_check17h0123E"));
        assert!(is_panic("_ZN4core6option13unwrap_failed17hE"));
        assert!(!is_panic("contention_begin"));
    }

    #[test]
    fn what_is_no_elf_file_is_an_error() {
        assert!(no_panics(b"nonsense").is_err());
    }
}
