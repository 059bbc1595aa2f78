//! A reader of BTF, the kernel's own type information (format: the kernel's `Documentation/bpf/btf.rst` and
//! `include/uapi/linux/btf.h`).
//!
//! It answers where a member lies, how large a type is, what a function's parameters are and which members lie at an
//! offset; for vmlinux and, as split BTF, for modules. A blob is never trusted: every read is bounds-checked, every
//! walk is bounded, and a malformed blob yields an error or "not found", never a panic. This file must not follow
//! pointers (it knows types, not memory) and must not guess: a missing member is an error with its name.

use std::{fmt, fs, ops::Range, sync::Arc};

use anyhow::{Context, Result, anyhow, bail, ensure};

/// Where the kernel shows its BTF: one file for vmlinux and one for each module (`kernel/bpf/btf.c`).
const SYS_BTF: &str = "/sys/kernel/btf";
/// `BTF_MAGIC` in the byte order of the machine that wrote it.
const MAGIC: u16 = 0xeb9f;
/// Bytes of `struct btf_header` up to and including `str_len`.
const HEADER_LEN: usize = 24;
/// Bytes of `struct btf_type`, before what the kind adds.
const TYPE_LEN: usize = 12;
/// Bytes of `struct btf_member`.
const MEMBER_LEN: usize = 12;
/// The bits of `btf_type.info` that have a meaning (`BTF_INFO_MASK`, `kernel/bpf/btf.c`).
const INFO_MASK: u32 = 0x9f00_ffff;
/// Longest run of typedefs, qualifiers and array dimensions that is followed: a cycle ends here.
const MAX_CHAIN: u32 = 64;
/// Deepest nesting of structs that is entered: a struct that contains itself ends here.
const MAX_DEPTH: u32 = 32;
/// Most members one question may look at: a malformed nest of unions ends here. `task_struct`, the largest real case,
/// needs a few hundred.
const MAX_VISITS: u32 = 20_000;
/// Longest name that is looked at, its NUL included (`KSYM_NAME_LEN`, the kernel's own limit in `kernel/bpf/btf.c`).
const MAX_NAME: usize = 512;
/// Bytes of a pointer: the tracer runs on 64-bit kernels only.
const POINTER_LEN: u32 = 8;

/// `BTF_KIND_*`, in the order of their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unknown,
    Int,
    Ptr,
    Array,
    Struct,
    Union,
    Enum,
    Fwd,
    Typedef,
    Volatile,
    Const,
    Restrict,
    Func,
    FuncProto,
    Var,
    Datasec,
    Float,
    DeclTag,
    TypeTag,
    Enum64,
}

/// Every kind, indexed by its number.
const KINDS: [Kind; 20] = [
    Kind::Unknown,
    Kind::Int,
    Kind::Ptr,
    Kind::Array,
    Kind::Struct,
    Kind::Union,
    Kind::Enum,
    Kind::Fwd,
    Kind::Typedef,
    Kind::Volatile,
    Kind::Const,
    Kind::Restrict,
    Kind::Func,
    Kind::FuncProto,
    Kind::Var,
    Kind::Datasec,
    Kind::Float,
    Kind::DeclTag,
    Kind::TypeTag,
    Kind::Enum64,
];

impl Kind {
    fn of(info: u32) -> Kind {
        KINDS.get((info >> 24 & 0x1f) as usize).copied().unwrap_or(Kind::Unknown)
    }

    /// Bytes that follow `struct btf_type`; `None` for a kind whose length is unknown.
    fn extra_len(self, count: usize) -> Option<usize> {
        Some(match self {
            Kind::Unknown => return None,
            Kind::Int | Kind::Var | Kind::DeclTag => 4,
            Kind::Array => 12,
            Kind::Struct | Kind::Union | Kind::Datasec | Kind::Enum64 => count * 12,
            Kind::Enum | Kind::FuncProto => count * 8,
            Kind::Ptr | Kind::Fwd | Kind::Typedef | Kind::Volatile | Kind::Const => 0,
            Kind::Restrict | Kind::Func | Kind::Float | Kind::TypeTag => 0,
        })
    }

    /// A layer that changes neither size nor members.
    fn is_modifier(self) -> bool {
        matches!(self, Kind::Typedef | Kind::Volatile | Kind::Const | Kind::Restrict | Kind::TypeTag)
    }

    fn is_aggregate(self) -> bool {
        matches!(self, Kind::Struct | Kind::Union)
    }

    /// Only what is looked up by name goes into the index.
    fn is_indexed(self) -> bool {
        matches!(self, Kind::Struct | Kind::Union | Kind::Typedef | Kind::Func)
    }
}

/// One parameter of a kernel function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// Its name in the source; empty when BTF has none.
    pub name: String,
    /// Its type as C writes it, e.g. `struct rw_semaphore *`; `...` for the variable part of a parameter list.
    pub type_name: String,
}

/// One member that covers a given offset of a struct, see [`Btf::at_offset`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberPath {
    /// The way to it, e.g. `vfs_inode.i_rwsem` or `cpu[3].lock`; anonymous structs and unions leave no trace.
    pub path: String,
    /// Bytes from the member's start to the offset asked for; 0 when the member begins exactly there.
    pub rest: u32,
    /// Its type as C writes it, e.g. `struct rw_semaphore` or `spinlock_t`.
    pub type_name: String,
}

/// A parsed BTF blob: vmlinux's, or a module's on top of it.
///
/// Type ids and string offsets are the kernel's own: a module's ids go on where vmlinux's end.
pub struct Btf {
    data: Vec<u8>,
    /// Where the strings lie in `data`.
    strings: Range<usize>,
    /// The offset in `data` of every own type, by id minus `first_id`.
    starts: Vec<u32>,
    /// The id of the first own type.
    first_id: u32,
    /// The string offset at which the own strings begin.
    first_string: u32,
    base: Option<Arc<Btf>>,
    index: NameIndex,
}

impl Btf {
    /// Reads the running kernel's BTF.
    ///
    /// # Errors
    /// `/sys/kernel/btf/vmlinux` cannot be read (a kernel without `CONFIG_DEBUG_INFO_BTF`) or is malformed; the
    /// message names the file.
    pub fn vmlinux() -> Result<Btf> {
        Btf::read("vmlinux", None)
    }

    /// Reads a loaded module's BTF on top of vmlinux's.
    ///
    /// # Errors
    /// `/sys/kernel/btf/<name>` cannot be read (the module is not loaded, or has no BTF) or is malformed; the message
    /// names the file.
    pub fn module(name: &str, vmlinux: Arc<Btf>) -> Result<Btf> {
        Btf::read(name, Some(vmlinux))
    }

    fn read(name: &str, base: Option<Arc<Btf>>) -> Result<Btf> {
        let file = format!("{SYS_BTF}/{name}");
        let data = fs::read(&file).with_context(|| format!("cannot read {file}"))?;
        Btf::parse(data, base).with_context(|| format!("cannot use {file}"))
    }

    /// Parses a blob; with `base`, as split BTF whose ids and string offsets go on where the base ends.
    ///
    /// # Errors
    /// The blob is no BTF of this machine's byte order, a section or type reaches beyond its end, or a type has a kind
    /// this reader does not know (its length, and so the place of the next type, would be a guess).
    pub fn parse(data: Vec<u8>, base: Option<Arc<Btf>>) -> Result<Btf> {
        let (types, strings) = sections(&data)?;
        let starts = type_starts(&data, types)?;
        let (first_id, first_string) = match &base {
            Some(base) => (base.end_id()?, base.end_string()?),
            None => (1, 0),
        };
        let index = NameIndex::default();
        let mut btf = Btf { data, strings, starts, first_id, first_string, base, index };
        btf.end_id()?;
        btf.end_string()?;
        btf.index = NameIndex::build(&btf);
        Ok(btf)
    }

    /// Byte offset of a member, e.g. `rw_semaphore.owner` or `task_struct.comm[2]`. The path begins with a struct,
    /// union or typedef, enters anonymous structs and unions by itself, and never goes through a pointer.
    ///
    /// # Errors
    /// The type or a member does not exist in this kernel, a pointer is in the way, an index is out of bounds, or the
    /// member is a bit field. The message says which member of which path.
    pub fn offset(&self, path: &str) -> Result<u32> {
        let place = self.locate(path)?;
        ensure!(!place.bitfield && place.bit % 8 == 0, "`{path}` is a bit field: it has no byte offset");
        Ok(place.bit / 8)
    }

    /// Offset of a member in bits, bit fields too. On a little-endian machine it is also the field's lowest bit in the word
    /// that it lies in.
    ///
    /// # Errors
    /// When the path leads nowhere.
    pub fn bit_offset(&self, path: &str) -> Result<u32> {
        Ok(self.locate(path)?.bit)
    }

    /// Size in bytes of a struct, union or typedef, e.g. `mutex`, or of a member, e.g. `task_struct.comm`.
    ///
    /// # Errors
    /// As for [`Btf::offset`]; also when the type has no size (a function, an incomplete type).
    pub fn size_of(&self, path: &str) -> Result<u32> {
        let place = self.locate(path)?;
        ensure!(!place.bitfield, "`{path}` is a bit field: it has no size in bytes");
        self.size(place.type_id).with_context(|| format!("`{path}` has no size"))
    }

    /// Type id of a function, as `attach_btf_id` wants it. A module's own functions come before vmlinux's.
    pub fn func_id(&self, name: &str) -> Option<u32> {
        self.find(name, Kind::Func)
    }

    /// Type id of a typedef; raw tracepoints attach to that of `btf_trace_<name>` (`include/trace/bpf_probe.h`).
    pub fn typedef_id(&self, name: &str) -> Option<u32> {
        self.find(name, Kind::Typedef)
    }

    /// Parameters of a function, or `None` when BTF does not describe it (absent, inlined, or left out because two
    /// static functions of that name differ).
    pub fn params(&self, func: &str) -> Option<Vec<Param>> {
        let proto = self.entry(self.func_id(func)?)?.third;
        let entry = self.entry(proto).filter(|entry| entry.kind == Kind::FuncProto)?;
        let params = entry.words::<2>().map(|[name, id]| Param {
            name: self.string(name).to_owned(),
            // The end of a variable parameter list is written as a parameter without name and type.
            type_name: if (name, id) == (0, 0) { "...".to_owned() } else { self.type_name(id) },
        });
        Some(params.collect())
    }

    /// Every named member of `struct_name` that covers the byte `offset`, outer before inner; a union gives one run
    /// of paths for each alternative. Of an array, the element that covers the offset. Bit fields, flexible arrays and
    /// members of no size are left out. Empty when the type is unknown or the offset lies in padding or beyond.
    pub fn at_offset(&self, struct_name: &str, offset: u32) -> Vec<MemberPath> {
        let mut walk = OffsetWalk { btf: self, visits: MAX_VISITS, found: Vec::new() };
        if let Some(id) = self.root(struct_name) {
            walk.enter(id, offset, "", MAX_DEPTH);
        }
        walk.found
    }

    /// Value of an enumerator of any enum, e.g. `PGTY_slab`; `None` when it does not exist or does not fit 32 bits.
    /// A negative value is given as its two's complement.
    pub fn enumerator(&self, name: &str) -> Option<u32> {
        let own = self.starts.iter().filter_map(|&start| self.entry_at(start));
        own.filter_map(|entry| self.enumerator_of(&entry, name))
            .next()
            .or_else(|| self.base.as_ref()?.enumerator(name))
    }

    fn enumerator_of(&self, entry: &Entry<'_>, name: &str) -> Option<u32> {
        match entry.kind {
            Kind::Enum => {
                entry.words::<2>().find(|&[at, _]| self.is_string(at, name)).map(|[_, value]| value)
            }
            Kind::Enum64 => entry
                .words::<3>()
                .find(|&[at, _, high]| high == 0 && self.is_string(at, name))
                .map(|[_, low, _]| low),
            _ => None,
        }
    }

    /// The type a path begins with, without typedefs and qualifiers.
    fn root(&self, name: &str) -> Option<u32> {
        let kinds = [Kind::Struct, Kind::Union, Kind::Typedef];
        kinds.into_iter().find_map(|kind| self.find(name, kind)).map(|id| self.strip(id))
    }

    fn locate(&self, path: &str) -> Result<Place> {
        let mut parts = path.split('.');
        let root = parts.next().unwrap_or_default();
        let type_id = self.root(root).with_context(|| format!("no struct, union or typedef `{root}`"))?;
        let mut place = Place { bit: 0, bitfield: false, type_id };
        for part in parts {
            place = self.step(place, part).with_context(|| format!("in the path `{path}`"))?;
        }
        Ok(place)
    }

    /// One part of a path: a member's name and, for an array, its indices.
    fn step(&self, from: Place, part: &str) -> Result<Place> {
        let (name, mut indices) = part.split_at(part.find('[').unwrap_or(part.len()));
        let mut place = self.member(from, name)?;
        while !indices.is_empty() {
            let (index, rest) =
                split_index(indices).with_context(|| format!("`{part}` is no array index"))?;
            place = self.element(place, index).with_context(|| format!("at `{part}`"))?;
            indices = rest;
        }
        Ok(place)
    }

    fn member(&self, from: Place, name: &str) -> Result<Place> {
        let id = self.strip(from.type_id);
        ensure!(!name.is_empty(), "a member's name is missing");
        match self.entry(id).map(|entry| entry.kind) {
            Some(Kind::Struct | Kind::Union) => {}
            Some(Kind::Ptr) => bail!("`{name}` lies behind a pointer, which a path does not follow"),
            _ => bail!("`{name}` cannot be a member of `{}`", self.type_name(id)),
        }
        let mut visits = MAX_VISITS;
        let found = self.find_member(id, name, MAX_DEPTH, &mut visits);
        let place = found.with_context(|| format!("no member `{name}` in `{}`", self.type_name(id)))?;
        place.moved(from.bit).context("the offset does not fit 32 bits")
    }

    /// Looks for a member by name, also inside anonymous structs and unions.
    fn find_member(&self, id: u32, name: &str, depth: u32, visits: &mut u32) -> Option<Place> {
        let entry = self.entry(id).filter(|entry| entry.kind.is_aggregate())?;
        let depth = depth.checked_sub(1)?;
        for member in entry.members() {
            *visits = visits.checked_sub(1)?;
            if self.is_string(member.name, name) {
                return Some(Place { bit: member.bit, bitfield: member.bitfield, type_id: member.type_id });
            }
            if member.name == 0
                && let Some(place) = self.find_member(self.strip(member.type_id), name, depth, visits)
            {
                return place.moved(member.bit);
            }
        }
        None
    }

    fn element(&self, from: Place, index: u32) -> Result<Place> {
        let Some((type_id, count)) = self.array(self.strip(from.type_id)) else {
            bail!("`{}` is no array", self.type_name(from.type_id));
        };
        // A flexible array says 0 elements; how many there are only its owner knows.
        ensure!(count == 0 || index < count, "index {index} of an array of {count}");
        let size = self.size(type_id).context("an array of elements without a size")?;
        let place = Place { bit: 0, bitfield: false, type_id };
        let bits = size.checked_mul(8).and_then(|bits| bits.checked_mul(index));
        bits.and_then(|bits| place.moved(bits)?.moved(from.bit)).context("the offset does not fit 32 bits")
    }

    /// Element type and number of elements, if the type is an array.
    fn array(&self, id: u32) -> Option<(u32, u32)> {
        let entry = self.entry(id).filter(|entry| entry.kind == Kind::Array)?;
        entry.words::<3>().next().map(|[element, _index_type, count]| (element, count))
    }

    /// Follows typedefs and qualifiers. Of a cycle, which only a malformed blob has, some id on it.
    fn strip(&self, mut id: u32) -> u32 {
        for _ in 0..MAX_CHAIN {
            match self.entry(id) {
                Some(entry) if entry.kind.is_modifier() => id = entry.third,
                _ => break,
            }
        }
        id
    }

    /// Size in bytes of any type that has one.
    fn size(&self, mut id: u32) -> Option<u32> {
        let mut count = 1u32;
        for _ in 0..MAX_CHAIN {
            let entry = self.entry(id)?;
            match entry.kind {
                Kind::Array => {
                    let (element, length) = self.array(id)?;
                    count = count.checked_mul(length)?;
                    id = element;
                }
                Kind::Ptr => return count.checked_mul(POINTER_LEN),
                Kind::Int | Kind::Struct | Kind::Union | Kind::Enum | Kind::Float | Kind::Enum64 => {
                    return count.checked_mul(entry.third);
                }
                kind if kind.is_modifier() => id = entry.third,
                _ => return None,
            }
        }
        None
    }

    /// A type as C writes it.
    fn type_name(&self, id: u32) -> String {
        self.type_name_within(id, MAX_DEPTH)
    }

    fn type_name_within(&self, id: u32, depth: u32) -> String {
        let Some(depth) = depth.checked_sub(1) else { return "?".to_owned() };
        let Some(entry) = self.entry(id) else {
            return if id == 0 { "void".to_owned() } else { "?".to_owned() };
        };
        let inner = || self.type_name_within(entry.third, depth);
        match entry.kind {
            Kind::Ptr => format!("{} *", inner()),
            Kind::Const => format!("const {}", inner()),
            Kind::Volatile => format!("volatile {}", inner()),
            Kind::Restrict | Kind::TypeTag => inner(),
            Kind::Struct => format!("struct {}", self.name_or_anonymous(&entry)),
            Kind::Union => format!("union {}", self.name_or_anonymous(&entry)),
            // The kind flag of a forward declaration says union (`btf_kflag`).
            Kind::Fwd if entry.flag => format!("union {}", self.string(entry.name)),
            Kind::Fwd => format!("struct {}", self.string(entry.name)),
            Kind::Enum | Kind::Enum64 => format!("enum {}", self.name_or_anonymous(&entry)),
            Kind::Array => self.array_name(id, depth),
            Kind::FuncProto => "function".to_owned(),
            _ => self.string(entry.name).to_owned(),
        }
    }

    fn array_name(&self, id: u32, depth: u32) -> String {
        match self.array(id) {
            Some((element, count)) => format!("{}[{count}]", self.type_name_within(element, depth)),
            None => "?".to_owned(),
        }
    }

    fn name_or_anonymous(&self, entry: &Entry<'_>) -> &str {
        if entry.name == 0 { "(anonymous)" } else { self.string(entry.name) }
    }

    /// The first type of that name and kind: own ids first, then the base's, so that a module's static function is
    /// not mistaken for one of the same name in vmlinux.
    fn find(&self, name: &str, kind: Kind) -> Option<u32> {
        self.index.find(self, name, kind).or_else(|| self.base.as_ref()?.find(name, kind))
    }

    fn entry(&self, id: u32) -> Option<Entry<'_>> {
        match id.checked_sub(self.first_id) {
            Some(own) => self.entry_at(*self.starts.get(own as usize)?),
            None => self.base.as_ref()?.entry(id),
        }
    }

    fn entry_at(&self, start: u32) -> Option<Entry<'_>> {
        Entry::read(&self.data, start as usize)
    }

    /// The string at an offset; empty when there is none, or none of a sane length.
    fn string(&self, offset: u32) -> &str {
        let bytes = self.bytes_from(offset);
        let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(0);
        bytes.get(..len).and_then(|text| std::str::from_utf8(text).ok()).unwrap_or_default()
    }

    fn is_string(&self, offset: u32, text: &str) -> bool {
        let rest = self.bytes_from(offset).strip_prefix(text.as_bytes());
        rest.is_some_and(|rest| rest.first() == Some(&0))
    }

    /// The bytes at a string offset, up to the longest name: where the string ends is left to the caller.
    fn bytes_from(&self, offset: u32) -> &[u8] {
        match offset.checked_sub(self.first_string) {
            Some(own) => {
                let bytes = self.own_strings().get(own as usize..).unwrap_or_default();
                bytes.get(..MAX_NAME).unwrap_or(bytes)
            }
            None => self.base.as_ref().map_or(&[], |base| base.bytes_from(offset)),
        }
    }

    fn own_strings(&self) -> &[u8] {
        self.data.get(self.strings.clone()).unwrap_or_default()
    }

    /// The id after the last own type.
    fn end_id(&self) -> Result<u32> {
        let count = u32::try_from(self.starts.len()).ok();
        count.and_then(|count| self.first_id.checked_add(count)).context("more types than ids")
    }

    /// The string offset after the last own string.
    fn end_string(&self) -> Result<u32> {
        let len = u32::try_from(self.strings.len()).ok();
        len.and_then(|len| self.first_string.checked_add(len)).context("more strings than offsets")
    }
}

impl fmt::Debug for Btf {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let split = self.base.is_some();
        out.debug_struct("Btf")
            .field("types", &self.starts.len())
            .field("first_id", &self.first_id)
            .field("split", &split)
            .finish_non_exhaustive()
    }
}

/// A member found by a path: where it begins, in bits, and its type.
#[derive(Debug, Clone, Copy)]
struct Place {
    bit: u32,
    bitfield: bool,
    type_id: u32,
}

impl Place {
    fn moved(self, bits: u32) -> Option<Place> {
        Some(Place { bit: self.bit.checked_add(bits)?, ..self })
    }
}

/// One `struct btf_type` and the bytes its kind adds.
struct Entry<'a> {
    name: u32,
    kind: Kind,
    /// `btf_kflag`: bit fields are written in the member itself.
    flag: bool,
    /// The union of `size` and `type`.
    third: u32,
    extra: &'a [u8],
}

impl<'a> Entry<'a> {
    fn read(data: &'a [u8], start: usize) -> Option<Entry<'a>> {
        let (head, rest) = data.get(start..)?.split_at_checked(TYPE_LEN)?;
        let [name, info, third] = words(head)?;
        let kind = Kind::of(info);
        let extra = rest.get(..kind.extra_len((info & 0xffff) as usize)?)?;
        Some(Entry { name, kind, flag: info >> 31 != 0, third, extra })
    }

    /// The records after the type, as `N` words each.
    fn words<const N: usize>(&self) -> impl Iterator<Item = [u32; N]> + use<'a, N> {
        self.extra.chunks_exact(N * 4).filter_map(words)
    }

    /// Members of a struct or union; nothing for other kinds.
    fn members(&self) -> impl Iterator<Item = Member> + use<'a> {
        let flag = self.flag;
        let extra = if self.kind.is_aggregate() { self.extra } else { &[] };
        extra.chunks_exact(MEMBER_LEN).filter_map(words).map(move |[name, type_id, offset]| Member {
            name,
            type_id,
            // With the flag, the upper 8 bits are a bit field's width (`BTF_MEMBER_BIT_OFFSET`).
            bit: if flag { offset & 0x00ff_ffff } else { offset },
            bitfield: flag && offset >> 24 != 0,
        })
    }
}

/// One `struct btf_member`.
struct Member {
    name: u32,
    type_id: u32,
    bit: u32,
    bitfield: bool,
}

/// The search for what lies at an offset, see [`Btf::at_offset`].
struct OffsetWalk<'a> {
    btf: &'a Btf,
    visits: u32,
    found: Vec<MemberPath>,
}

impl OffsetWalk<'_> {
    /// Looks into a type, whose own path is `prefix`, at `offset` from its start.
    fn enter(&mut self, id: u32, offset: u32, prefix: &str, depth: u32) {
        let (btf, Some(depth)) = (self.btf, depth.checked_sub(1)) else { return };
        let id = btf.strip(id);
        if let Some((element, _)) = btf.array(id) {
            self.enter_array(element, offset, prefix, depth);
        } else if let Some(entry) = btf.entry(id) {
            for member in entry.members() {
                let Some(visits) = self.visits.checked_sub(1) else { return };
                self.visits = visits;
                self.enter_member(&member, offset, prefix, depth);
            }
        }
    }

    fn enter_member(&mut self, member: &Member, offset: u32, prefix: &str, depth: u32) {
        let size = self.btf.size(member.type_id).unwrap_or(0);
        let Some(inner) = offset.checked_sub(member.bit / 8).filter(|&inner| inner < size) else { return };
        if member.bitfield {
            return;
        }
        if member.name == 0 {
            return self.enter(member.type_id, inner, prefix, depth);
        }
        let dot = if prefix.is_empty() { "" } else { "." };
        let path = format!("{prefix}{dot}{}", self.btf.string(member.name));
        self.visit(member.type_id, inner, path, depth);
    }

    fn enter_array(&mut self, element: u32, offset: u32, prefix: &str, depth: u32) {
        if let Some(size) = self.btf.size(element).filter(|&size| size > 0) {
            self.visit(element, offset % size, format!("{prefix}[{}]", offset / size), depth);
        }
    }

    /// Notes a member and looks inside. Of an array only the element is noted: nobody asks for the whole.
    fn visit(&mut self, id: u32, rest: u32, path: String, depth: u32) {
        if self.btf.array(self.btf.strip(id)).is_none() {
            self.found.push(MemberPath { path: path.clone(), rest, type_name: self.btf.type_name(id) });
        }
        self.enter(id, rest, &path, depth);
    }
}

/// Name → types, as chains over the type numbers: two flat arrays instead of a hundred thousand small strings.
#[derive(Default)]
struct NameIndex {
    /// First type of each hash value, as its place in `Btf::starts` plus one; 0 for none. A power of two long.
    heads: Vec<u32>,
    /// The next type of the same hash value, by place in `Btf::starts`.
    next: Vec<u32>,
}

impl NameIndex {
    fn build(btf: &Btf) -> NameIndex {
        let len = btf.starts.len();
        let mut index = NameIndex { heads: vec![0; (len / 2).next_power_of_two()], next: vec![0; len] };
        // From the last to the first, so that a chain begins with the lowest id.
        for (own, &start) in btf.starts.iter().enumerate().rev() {
            let Some(entry) = btf.entry_at(start) else { continue };
            if entry.kind.is_indexed() && entry.name != 0 {
                index.insert(own, hash(btf.bytes_from(entry.name)));
            }
        }
        index
    }

    fn insert(&mut self, own: usize, hash: u32) {
        let slot = self.slot(hash);
        // `parse` checked that every place plus one fits: ids do.
        if let (Some(head), Some(next), Ok(number)) =
            (self.heads.get_mut(slot), self.next.get_mut(own), u32::try_from(own + 1))
        {
            *next = std::mem::replace(head, number);
        }
    }

    fn slot(&self, hash: u32) -> usize {
        hash as usize & self.heads.len().saturating_sub(1)
    }

    fn find(&self, btf: &Btf, name: &str, kind: Kind) -> Option<u32> {
        let mut number = *self.heads.get(self.slot(hash(name.as_bytes())))?;
        while let Some(own) = number.checked_sub(1) {
            let entry = btf.entry_at(*btf.starts.get(own as usize)?)?;
            if entry.kind == kind && btf.is_string(entry.name, name) {
                return btf.first_id.checked_add(own);
            }
            number = *self.next.get(own as usize)?;
        }
        None
    }
}

/// FNV-1a over a string, up to its NUL if it has one.
fn hash(text: &[u8]) -> u32 {
    let bytes = text.iter().take_while(|&&byte| byte != 0);
    bytes.fold(0x811c_9dc5, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// The types and the strings of a blob, as places in it.
fn sections(data: &[u8]) -> Result<(Range<usize>, Range<usize>)> {
    let head = data.get(..HEADER_LEN).context("the blob is shorter than a BTF header")?;
    let [first, header_len, type_off, type_len, str_off, str_len] =
        words(head).context("the blob is shorter than a BTF header")?;
    let magic = (first & 0xffff) as u16;
    ensure!(magic != MAGIC.swap_bytes(), "the BTF is of the other byte order");
    ensure!(magic == MAGIC, "no BTF: it begins with {magic:#06x}");
    ensure!(header_len as usize >= HEADER_LEN, "a BTF header of {header_len} bytes");
    let types = section(data, header_len, type_off, type_len).context("the types reach beyond the end")?;
    let strings = section(data, header_len, str_off, str_len).context("the strings reach beyond the end")?;
    // A last string without an end would run into whatever follows.
    let ended = data.get(strings.clone()).is_some_and(|text| text.last().is_none_or(|&byte| byte == 0));
    ensure!(ended, "the last string has no end");
    Ok((types, strings))
}

fn section(data: &[u8], header_len: u32, offset: u32, len: u32) -> Option<Range<usize>> {
    let start = (header_len as usize).checked_add(offset as usize)?;
    let end = start.checked_add(len as usize)?;
    data.get(start..end).map(|_| start..end)
}

/// Where each type begins.
fn type_starts(data: &[u8], types: Range<usize>) -> Result<Vec<u32>> {
    let within = data.get(..types.end).context("the types reach beyond the end")?;
    let mut starts = Vec::with_capacity(types.len() / 24);
    let mut at = types.start;
    while at < types.end {
        starts.push(u32::try_from(at).context("the blob is larger than 4 GiB")?);
        let len = type_len(within, at).with_context(|| format!("type {} of the blob", starts.len()))?;
        at += len;
    }
    Ok(starts)
}

/// Length of the type at a place; checks that all of it is there.
fn type_len(data: &[u8], at: usize) -> Result<usize> {
    let info = data.get(at + 4..).and_then(words::<1>).map(|[info]| info);
    let info = info.context("ends before its end")?;
    ensure!(info & !INFO_MASK == 0, "has unknown bits: {info:#x}");
    let extra = Kind::of(info).extra_len((info & 0xffff) as usize);
    let extra = extra.ok_or_else(|| anyhow!("is of the unknown kind {}", info >> 24 & 0x1f))?;
    data.get(at..at + TYPE_LEN + extra).context("ends before its end")?;
    Ok(TYPE_LEN + extra)
}

/// The first `N` words of some bytes. BTF is in the byte order of its machine.
fn words<const N: usize>(bytes: &[u8]) -> Option<[u32; N]> {
    let (chunks, _) = bytes.as_chunks::<4>();
    let chunks: &[[u8; 4]; N] = chunks.first_chunk()?;
    Some(chunks.map(u32::from_ne_bytes))
}

/// Splits `[3][4]` into 3 and `[4]`.
fn split_index(text: &str) -> Option<(u32, &str)> {
    let (digits, rest) = text.strip_prefix('[')?.split_once(']')?;
    Some((digits.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes small blobs by hand.
    #[derive(Clone, Default)]
    struct Blob {
        types: Vec<u8>,
        strings: Vec<u8>,
        first_string: u32,
    }

    impl Blob {
        fn new() -> Blob {
            Blob { strings: vec![0], ..Blob::default() }
        }

        fn on_top_of(base: &Btf) -> Blob {
            Blob { first_string: base.end_string().unwrap(), ..Blob::default() }
        }

        fn string(&mut self, text: &str) -> u32 {
            if text.is_empty() {
                return 0;
            }
            let at = self.first_string + self.strings.len() as u32;
            self.strings.extend_from_slice(text.as_bytes());
            self.strings.push(0);
            at
        }

        fn add(&mut self, name: &str, kind: Kind, count: u32, third: u32, extra: &[u32]) -> &mut Blob {
            let name = self.string(name);
            let info = (kind as u32) << 24 | count;
            for word in [name, info, third].iter().chain(extra) {
                self.types.extend_from_slice(&word.to_ne_bytes());
            }
            self
        }

        fn aggregate(
            &mut self,
            name: &str,
            kind: Kind,
            size: u32,
            members: &[(&str, u32, u32)],
        ) -> &mut Blob {
            let extra: Vec<u32> =
                members.iter().flat_map(|&(name, id, byte)| [self.string(name), id, byte * 8]).collect();
            self.add(name, kind, members.len() as u32, size, &extra)
        }

        fn bytes(&self) -> Vec<u8> {
            let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
            let head = [u32::from(MAGIC) | 1 << 16, HEADER_LEN as u32, 0, types, types, strings];
            let head = head.iter().flat_map(|word| word.to_ne_bytes());
            head.chain(self.types.iter().copied()).chain(self.strings.iter().copied()).collect()
        }

        fn parse(&self, base: Option<Arc<Btf>>) -> Btf {
            Btf::parse(self.bytes(), base).unwrap()
        }
    }

    /// ```c
    /// typedef struct lock { u32 raw; u32 owner; } lock_t;                    // 2, 3
    /// struct outer { u32 a; union { lock_t x; struct { u32 y; lock_t z[2]; }; }; struct outer *next; };
    /// int take(struct outer *o, const lock_t l, ...);
    /// ```
    fn sample() -> Blob {
        let mut blob = Blob::new();
        blob.add("u32", Kind::Int, 0, 4, &[32]) // 1
            .aggregate("lock", Kind::Struct, 8, &[("raw", 1, 0), ("owner", 1, 4)]) // 2
            .add("lock_t", Kind::Typedef, 0, 2, &[]) // 3
            .add("", Kind::Array, 0, 0, &[3, 1, 2]) // 4
            .aggregate("", Kind::Struct, 20, &[("y", 1, 0), ("z", 4, 4)]) // 5
            .aggregate("", Kind::Union, 20, &[("x", 3, 0), ("", 5, 0)]) // 6
            .aggregate("outer", Kind::Struct, 32, &[("a", 1, 0), ("", 6, 4), ("next", 8, 24)]) // 7
            .add("", Kind::Ptr, 0, 7, &[]) // 8
            .add("", Kind::Const, 0, 3, &[]); // 9
        let (o, l) = (blob.string("o"), blob.string("l"));
        blob.add("", Kind::FuncProto, 3, 1, &[o, 8, l, 9, 0, 0]) // 10
            .add("take", Kind::Func, 0, 10, &[]); // 11
        let (red, blue) = (blob.string("RED"), blob.string("BLUE"));
        blob.add("colour", Kind::Enum, 2, 4, &[red, 7, blue, u32::MAX]);
        blob
    }

    fn paths(found: &[MemberPath]) -> Vec<String> {
        found.iter().map(|m| format!("{}+{} {}", m.path, m.rest, m.type_name)).collect()
    }

    #[test]
    fn offsets_and_sizes_of_a_hand_made_blob() {
        let btf = sample().parse(None);
        for (path, offset) in
            [("outer.a", 0), ("outer.x.owner", 8), ("outer.y", 4), ("outer.z", 8), ("outer.z[1].owner", 20)]
        {
            assert_eq!(btf.offset(path).unwrap(), offset, "{path}");
        }
        assert_eq!(btf.offset("lock_t.owner").unwrap(), 4);
        for (path, size) in
            [("outer", 32), ("lock_t", 8), ("outer.z", 16), ("outer.z[0]", 8), ("outer.next", 8)]
        {
            assert_eq!(btf.size_of(path).unwrap(), size, "{path}");
        }
    }

    #[test]
    fn an_error_says_which_member_of_which_path() {
        let btf = sample().parse(None);
        let message = |path: &str| format!("{:#}", btf.offset(path).unwrap_err());
        assert_eq!(message("nope.a"), "no struct, union or typedef `nope`");
        assert_eq!(message("outer.x.what"), "in the path `outer.x.what`: no member `what` in `struct lock`");
        assert!(message("outer.next.a").contains("`a` lies behind a pointer"), "{}", message("outer.next.a"));
        assert!(message("outer.a.b").contains("cannot be a member of `u32`"));
        assert!(message("outer.z[2]").contains("index 2 of an array of 2"));
        assert!(message("outer.a[0]").contains("is no array"));
        for broken in ["", "outer.", "outer..a", "outer.z[", "outer.z[]", "outer.z[x]", "outer.z[0]z"] {
            assert!(btf.offset(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn every_member_at_an_offset_outer_before_inner() {
        let btf = sample().parse(None);
        assert_eq!(
            paths(&btf.at_offset("outer", 8)),
            ["x+4 lock_t", "x.owner+0 u32", "z[0]+0 lock_t", "z[0].raw+0 u32"]
        );
        assert_eq!(paths(&btf.at_offset("outer", 21)), ["z[1]+5 lock_t", "z[1].owner+1 u32"]);
        assert_eq!(paths(&btf.at_offset("outer", 24)), ["next+0 struct outer *"]);
        assert!(btf.at_offset("outer", 32).is_empty() && btf.at_offset("nope", 0).is_empty());
    }

    #[test]
    fn functions_and_enumerators() {
        let btf = sample().parse(None);
        assert_eq!(btf.func_id("take"), Some(11));
        assert_eq!((btf.func_id("outer"), btf.typedef_id("lock_t")), (None, Some(3)));
        let params = btf.params("take").unwrap();
        let text: Vec<_> = params.iter().map(|p| format!("{}: {}", p.name, p.type_name)).collect();
        assert_eq!(text, ["o: struct outer *", "l: const lock_t", ": ..."]);
        assert_eq!((btf.enumerator("RED"), btf.enumerator("BLUE")), (Some(7), Some(u32::MAX)));
        assert_eq!(btf.enumerator("RE"), None);
    }

    #[test]
    fn bit_fields_have_no_byte_offset() {
        let mut blob = Blob::new();
        let (plain, bits) = (blob.string("plain"), blob.string("bits"));
        let flag = 1 << 31;
        blob.add("u32", Kind::Int, 0, 4, &[32]).add(
            "s",
            Kind::Struct,
            flag | 2,
            8,
            &[plain, 1, 0, bits, 1, 3 << 24 | 32],
        );
        let btf = blob.parse(None);
        assert_eq!(btf.offset("s.plain").unwrap(), 0);
        assert!(btf.offset("s.bits").unwrap_err().to_string().contains("bit field"));
        assert_eq!(paths(&btf.at_offset("s", 4)), [""; 0]);
    }

    #[test]
    fn split_ids_and_strings_go_on_where_the_base_ends() {
        let base = Arc::new(sample().parse(None));
        let mut blob = Blob::on_top_of(&base);
        blob.aggregate("journal", Kind::Struct, 40, &[("j_id", 1, 0), ("j_lock", 3, 4), ("", 6, 12)]) // 13
            .add("take", Kind::Func, 0, 10, &[]) // 14: a static function of the same name
            .add("btf_trace_jbd", Kind::Typedef, 0, 8, &[]); // 15
        let btf = blob.parse(Some(Arc::clone(&base)));
        assert_eq!(btf.offset("journal.j_lock.owner").unwrap(), 8);
        assert_eq!(btf.offset("journal.z[1]").unwrap(), 24);
        assert_eq!(btf.offset("outer.x").unwrap(), 4, "the base stays visible");
        assert_eq!((btf.func_id("take"), base.func_id("take")), (Some(14), Some(11)));
        assert_eq!(btf.typedef_id("btf_trace_jbd"), Some(15));
        assert_eq!(btf.enumerator("RED"), Some(7));
        assert_eq!(paths(&btf.at_offset("journal", 4)), ["j_lock+0 lock_t", "j_lock.raw+0 u32"]);
    }

    #[test]
    fn cycles_end() {
        let mut blob = Blob::new();
        let members: Vec<_> = (0..64).map(|_| ("", 4, 0)).collect();
        blob.add("a", Kind::Typedef, 0, 2, &[]) // 1
            .add("b", Kind::Typedef, 0, 1, &[]) // 2
            .add("", Kind::Array, 0, 0, &[3, 1, 2]) // 3: an array of itself
            .aggregate("self", Kind::Struct, 8, &members) // 4: 64 times itself, without a name
            .aggregate("named", Kind::Struct, 8, &[("same", 5, 0), ("array", 3, 0)]); // 5
        let btf = blob.parse(None);
        assert!(btf.offset("a.x").is_err() && btf.size_of("a").is_err());
        assert!(btf.offset("self.x").is_err() && btf.at_offset("self", 0).is_empty());
        assert!(btf.size_of("named.array").is_err());
        assert!(btf.at_offset("named", 0).len() <= MAX_DEPTH as usize);
    }

    #[test]
    fn what_is_no_btf_is_refused_with_a_reason() {
        let message = |data: Vec<u8>| format!("{:#}", Btf::parse(data, None).unwrap_err());
        let good = sample().bytes();
        assert!(message(Vec::new()).contains("shorter than a BTF header"));
        assert!(message(vec![0; 64]).contains("no BTF"));
        let mut swapped = good.clone();
        swapped.swap(0, 1);
        assert!(message(swapped).contains("other byte order"));
        let mut unknown = good.clone();
        unknown[HEADER_LEN + 7] = 20;
        assert!(message(unknown).contains("type 1 of the blob: is of the unknown kind 20"));
        let mut open = good.clone();
        *open.last_mut().unwrap() = b'x';
        assert!(message(open).contains("the last string has no end"));
    }

    /// Asks a blob everything; only a panic or a hang is a failure.
    fn exercise(data: Vec<u8>, base: Option<&Arc<Btf>>, names: &[&str]) -> bool {
        let Ok(btf) = Btf::parse(data, base.cloned()) else { return false };
        for name in names {
            let _ = (btf.offset(name), btf.size_of(name), btf.params(name), btf.func_id(name));
            let root = name.split('.').next().unwrap_or_default();
            for offset in [0, 4, 8, 200, u32::MAX] {
                btf.at_offset(root, offset);
            }
        }
        btf.enumerator("no such enumerator");
        true
    }

    /// A small generator of the same numbers in every run (xorshift).
    struct Dice(u64);

    impl Dice {
        fn roll(&mut self, below: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % below as u64) as usize
        }
    }

    const SAMPLE_NAMES: [&str; 6] =
        ["outer.z[1].owner", "outer.x", "lock_t.raw", "take", "outer.next.a", "lock"];

    #[test]
    fn truncated_and_corrupted_samples_never_panic() {
        let good = sample().bytes();
        assert!(exercise(good.clone(), None, &SAMPLE_NAMES));
        for len in 0..good.len() {
            exercise(good[..len].to_vec(), None, &SAMPLE_NAMES);
        }
        let base = Arc::new(sample().parse(None));
        let mut dice = Dice(42);
        let mut parsed = 0;
        for _ in 0..6_000 {
            let mut bad = good.clone();
            for _ in 0..=dice.roll(4) {
                let at = dice.roll(bad.len());
                bad[at] = dice.roll(256) as u8;
            }
            parsed += usize::from(exercise(bad.clone(), None, &SAMPLE_NAMES));
            exercise(bad, Some(&base), &SAMPLE_NAMES);
        }
        assert!(parsed > 300, "corruption must get past the parser to be a test: {parsed}");
    }

    fn host() -> Option<Vec<u8>> {
        let data = fs::read(format!("{SYS_BTF}/vmlinux")).ok();
        if data.is_none() {
            eprintln!("skipped: this kernel shows no {SYS_BTF}/vmlinux");
        }
        data
    }

    #[test]
    fn the_running_kernel() {
        if host().is_none() {
            return;
        }
        let btf = Btf::vmlinux().unwrap();
        assert_eq!((btf.size_of("list_head").unwrap(), btf.offset("list_head.prev").unwrap()), (16, 8));
        assert!(btf.offset("task_struct.comm[2]").unwrap() == btf.offset("task_struct.comm").unwrap() + 2);
        let at = btf.offset("mm_struct.mmap_lock").unwrap();
        let found = btf.at_offset("mm_struct", at);
        assert_eq!(found[0].path, "mmap_lock", "{found:?}");
        assert_eq!((found[0].rest, found[0].type_name.as_str()), (0, "struct rw_semaphore"));
        let params = btf.params("down_write").unwrap();
        assert_eq!((params.len(), params[0].type_name.as_str()), (1, "struct rw_semaphore *"));
        assert!(btf.typedef_id("btf_trace_sched_switch").is_some());
        assert!(btf.enumerator("PIDTYPE_MAX").is_some_and(|value| value > 1));
    }

    const HOST_NAMES: [&str; 5] = [
        "task_struct.comm[2]",
        "mm_struct.mmap_lock.owner",
        "down_write",
        "inode.i_rwsem",
        "spinlock_t.rlock",
    ];

    #[test]
    fn truncated_and_corrupted_copies_of_the_running_kernel_never_panic() {
        let Some(good) = host() else { return };
        let (types, _) = sections(&good).unwrap();
        let mut dice = Dice(7);
        let mut parsed = 0;
        for _ in 0..6 {
            exercise(good[..dice.roll(good.len())].to_vec(), None, &HOST_NAMES);
            let mut bad = good.clone();
            for _ in 0..2_000 {
                // Past the info word of whatever type this hits, mostly: ids, offsets and names.
                let at = types.start + dice.roll(types.len() / 4 - 1) * 4;
                let word = dice.roll(200_000) as u32;
                if good[at + 3] == 0 {
                    bad[at..at + 4].copy_from_slice(&word.to_ne_bytes());
                }
            }
            parsed += usize::from(exercise(bad, None, &HOST_NAMES));
        }
        assert!(parsed > 0, "corruption must get past the parser to be a test");
    }

    #[test]
    #[ignore = "a measurement: cargo test --release -- --ignored --nocapture"]
    fn how_long_a_read_takes() {
        let Some(data) = host() else { return };
        for _ in 0..5 {
            let start = std::time::Instant::now();
            let btf = Btf::parse(data.clone(), None).unwrap();
            let parse = start.elapsed();
            let start = std::time::Instant::now();
            for _ in 0..1000 {
                btf.offset("mm_struct.mmap_lock.owner").unwrap();
            }
            let offset = start.elapsed() / 1000;
            let start = std::time::Instant::now();
            btf.enumerator("no such enumerator");
            eprintln!("{btf:?}: parse {parse:?}, offset {offset:?}, enumerators {:?}", start.elapsed());
            let start = std::time::Instant::now();
            Btf::vmlinux().unwrap();
            eprintln!("vmlinux() {:?}", start.elapsed());
        }
    }
}
