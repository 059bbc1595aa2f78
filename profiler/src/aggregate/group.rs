//! What a row of a table is: the parts of a wait's key that a grouping keeps.
//!
//! Must not count anything.

use crate::snapshot::{CellName, LockName, OpenWait, kind_name, mode_letter};

use super::window::NameBook;

/// How waits are put together to rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupBy {
    /// Lock, mode, caller and workload: the finest table, and the one that is exported.
    LockModeCaller,
    /// Lock and mode: both sides of each reader-writer lock.
    LockMode,
    /// Lock.
    Lock,
    /// The function that waited.
    Caller,
    /// Kind and mode.
    Kind,
    /// The waiting process.
    Process,
}

/// The parts of a key that a grouping keeps; the others are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowKey {
    /// A kind's number.
    pub kind: Option<u8>,
    /// A mode's number.
    pub mode: Option<u8>,
    /// Number of the lock.
    pub lock: Option<u32>,
    /// Number of the caller in the name book.
    pub caller: Option<u32>,
    /// Number of the selector.
    pub workload: Option<u8>,
    /// The waiting process.
    pub process: Option<u32>,
}

impl RowKey {
    /// The row of a cell.
    pub fn of_cell(by: GroupBy, cell: &CellName, names: &NameBook) -> RowKey {
        RowKey {
            kind: Some(cell.kind),
            mode: Some(cell.mode),
            lock: Some(cell.lock),
            caller: names.caller_number(cell.stack),
            workload: Some(cell.workload),
            process: Some(cell.tgid),
        }
        .keep(by)
    }

    /// The row of a wait in progress.
    pub fn of_open(by: GroupBy, open: &OpenWait, names: &NameBook) -> RowKey {
        RowKey {
            kind: Some(open.kind),
            mode: Some(open.mode),
            lock: Some(open.lock),
            caller: names.caller_of_open(open),
            workload: Some(open.workload),
            process: Some(open.tgid),
        }
        .keep(by)
    }

    fn keep(self, by: GroupBy) -> RowKey {
        let RowKey { kind, mode, lock, caller, process, .. } = self;
        let none = RowKey::default();
        match by {
            GroupBy::LockModeCaller => RowKey { process: None, ..self },
            GroupBy::LockMode => RowKey { kind, mode, lock, ..none },
            GroupBy::Lock => RowKey { kind, lock, ..none },
            GroupBy::Caller => RowKey { caller, ..none },
            GroupBy::Kind => RowKey { kind, mode, ..none },
            GroupBy::Process => RowKey { process, ..none },
        }
    }

    /// The key without the caller: a wait in progress may move from one caller's row to another's when it ends.
    pub fn place(self) -> RowKey {
        RowKey { caller: None, ..self }
    }

    /// The kind's word, `*` if the grouping does not keep it.
    pub fn kind_word(self) -> &'static str {
        self.kind.map_or("*", kind_name)
    }

    /// The mode's letter, `*` if the grouping does not keep it.
    pub fn mode_word(self) -> &'static str {
        self.mode.map_or("*", mode_letter)
    }
}

/// A lock's class: structure and member, or a static lock's symbol.
pub fn class_of(lock: &LockName) -> Option<String> {
    lock.class.clone().or_else(|| lock.symbol.clone())
}

/// How a lock is shown: its class and instance, else `~` and the function that waited for it, else its opaque name.
pub fn lock_name(names: &NameBook, lock: u32, caller: Option<&str>) -> String {
    let known = names.lock(lock);
    match (known.and_then(full_name), caller, known) {
        (Some(name), _, _) => name,
        (None, Some(caller), Some(lock)) if lock.is_static => format!("static lock (seen in {caller})"),
        (None, Some(caller), _) => format!("~{caller}"),
        (None, None, Some(lock)) => lock.lock_id.clone(),
        (None, None, None) => "lock without a name".to_string(),
    }
}

fn full_name(lock: &LockName) -> Option<String> {
    let class = class_of(lock)?;
    Some(lock.instance.as_ref().map_or(class.clone(), |instance| format!("{class} {instance}")))
}

/// How a row is shown. `caller` is the one that waited most, also where the grouping does not keep it.
pub fn row_name(by: GroupBy, key: RowKey, names: &NameBook, caller: Option<&str>) -> String {
    match by {
        GroupBy::LockModeCaller | GroupBy::LockMode | GroupBy::Lock => {
            lock_name(names, key.lock.unwrap_or(u32::MAX), caller)
        }
        GroupBy::Caller => {
            key.caller.and_then(|number| names.caller(number)).unwrap_or("caller not known").to_string()
        }
        GroupBy::Kind => format!("{}:{}", key.kind_word(), key.mode_word()),
        GroupBy::Process => process_name(&names.comm(key.process.unwrap_or(0)), key.process.unwrap_or(0)),
    }
}

fn process_name(comm: &[u8], tgid: u32) -> String {
    match std::str::from_utf8(comm) {
        Ok("") => format!("process {tgid}"),
        Ok(text) => format!("{text} {tgid}"),
        Err(_) => format!("{} {tgid}", comm.escape_ascii()),
    }
}
