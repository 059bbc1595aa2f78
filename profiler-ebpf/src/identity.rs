//! What object a lock lies in, asked at a wait's end, while the waiter's own reference keeps the object alive: address → page
//! → slab → cache and offset, and for inodes and address spaces which one. Names are user space's. Nothing is kept by
//! address here: addresses are reused, and then two locks would be one.

use aya_ebpf::helpers::generated::bpf_probe_read_kernel;
use profiler_common::{
    CellKey, Kind,
    key::{BUFFER_CLASS, CACHE_INODE, CACHE_KMALLOC, CACHE_MM, CacheInfo, FOLIO_CLASS},
    limits::FAMILIES,
    loss::Counter,
};

use crate::{
    kernel::{self, ABSENT, read},
    maps::{CACHES, PAGES, count, cpu},
    stack::Family,
};

/// sizeof(struct page): user space switches identity off where it is another.
const PAGE_STRUCT: u64 = 64;
const PAGE_SHIFT: u64 = 12;
/// From here on lies the kernel image (arch/x86/include/asm/page_64_types.h, __START_KERNEL_map): no slab is there.
const IMAGE: u64 = 0xffff_ffff_8000_0000;

/// Replaces the lock's address in the key by class and instance, where they can be told.
#[inline(always)]
pub fn identify(key: &mut CellKey, constant: u64, family: Family) {
    if key.kind == Kind::Folio as u8 {
        describe_folio(key);
        return;
    }
    if key.kind == Kind::Buffer as u8 || key.kind == Kind::Jbd2Shadow as u8 {
        describe_buffer(key);
        return;
    }
    if constant == 0 || key.lock >= IMAGE {
        return;
    }
    let Some(words) = PAGES.get_ptr_mut(cpu() * FAMILIES + family.index()) else { return };
    let Some(page) =
        slab_of(words, constant.wrapping_add((key.lock >> PAGE_SHIFT).wrapping_mul(PAGE_STRUCT)))
    else {
        return;
    };
    let cache = word(words, kernel::OFF_SLAB_CACHE.load());
    // SAFETY: user space only adds to this map.
    let Some(&info) = (unsafe { CACHES.get(&cache) }) else {
        count(Counter::UnknownCache);
        return;
    };
    let start = (page.wrapping_sub(constant) / PAGE_STRUCT) << PAGE_SHIFT;
    let Some(offset) = key.lock.wrapping_sub(start).checked_rem(info.size as u64) else { return };
    if info.kind != CACHE_KMALLOC {
        describe(key, &info, key.lock - offset);
        key.lock = cache;
        key.offset = offset as u32;
    }
}

/// The slab that a page belongs to, if it does: the address of its first `struct page`, whose words are left in `words`.
#[inline(always)]
fn slab_of(words: Words, page: u64) -> Option<u64> {
    read_page(words, page)?;
    let head = word(words, kernel::OFF_PAGE_HEAD.load());
    if head & 1 == 0 {
        return is_slab(words).then_some(page);
    }
    read_page(words, head - 1)?;
    is_slab(words).then_some(head - 1)
}

type Words = *mut [u64; 8];

#[inline(always)]
fn read_page(words: Words, page: u64) -> Option<()> {
    // SAFETY: `words` is a map value of 64 bytes, and the helper faults safely on any address.
    let failed = unsafe { bpf_probe_read_kernel(words.cast(), PAGE_STRUCT as u32, page as *const _) };
    (failed == 0).then_some(())
}

#[inline(always)]
fn is_slab(page: Words) -> bool {
    let wanted = kernel::PAGE_TYPE_SLAB.load();
    if wanted == ABSENT {
        return word(page, kernel::OFF_PAGE_FLAGS.load()) >> (kernel::PAGE_FLAG_SLAB.load() & 63) & 1 != 0;
    }
    let offset = kernel::OFF_PAGE_TYPE.load();
    // The type is the upper byte of a 32-bit word, which may be the upper half of ours.
    word(page, offset) >> ((offset & 4) * 8 + 24) & 0xff == wanted as u64
}

/// The 64-bit word of a page's structure that holds this offset.
#[inline(always)]
fn word(page: Words, offset: u32) -> u64 {
    let index = core::hint::black_box(offset / 8) as usize & 7;
    // SAFETY: the index is masked to the array.
    unsafe { *(page as *const u64).add(index) }
}

#[inline(always)]
fn describe(key: &mut CellKey, info: &CacheInfo, object: u64) {
    if info.kind == CACHE_INODE {
        describe_inode(key, object + info.inode_offset as u64);
    } else if info.kind == CACHE_MM {
        key.instance = mm_owner(object).unwrap_or(key.tgid) as u64;
    }
}

/// A buffer is known by its device and block.
#[inline(always)]
fn describe_buffer(key: &mut CellKey) {
    let buffer = key.lock;
    key.lock = BUFFER_CLASS;
    key.offset = 0;
    key.instance = read(buffer + kernel::OFF_BH_BLOCK.load() as u64).unwrap_or(0);
    let bdev: u64 = read(buffer + kernel::OFF_BH_BDEV.load() as u64).unwrap_or(0);
    key.device = read(bdev + kernel::OFF_BDEV_DEV.load() as u64).unwrap_or(0);
}

/// PAGE_MAPPING_FLAGS (include/linux/page-flags.h): not a file's page.
const NO_FILE: u64 = 3;

/// A folio is known by the file that it belongs to; anonymous ones have none.
#[inline(always)]
fn describe_folio(key: &mut CellKey) {
    let mapping: u64 = read(key.lock + kernel::OFF_FOLIO_MAPPING.load() as u64).unwrap_or(0);
    key.lock = FOLIO_CLASS;
    key.offset = 0;
    if mapping & NO_FILE == 0
        && let Some(host) = read::<u64>(mapping + kernel::OFF_MAPPING_HOST.load() as u64)
    {
        describe_inode(key, host);
    }
}

#[inline(always)]
fn describe_inode(key: &mut CellKey, inode: u64) {
    key.instance = read(inode + kernel::OFF_INODE_NUMBER.load() as u64).unwrap_or(0);
    key.generation = read(inode + kernel::OFF_INODE_GENERATION.load() as u64).unwrap_or(0);
    let sb: u64 = read(inode + kernel::OFF_INODE_SB.load() as u64).unwrap_or(0);
    key.device = read(sb + kernel::OFF_SB_DEV.load() as u64).unwrap_or(0);
}

/// The process that an address space belongs to (mm_struct.owner).
#[inline(always)]
fn mm_owner(mm: u64) -> Option<u32> {
    let offset = kernel::OFF_MM_OWNER.load();
    if offset == ABSENT || kernel::OFF_TASK_TGID.load() == ABSENT {
        return None;
    }
    let owner: u64 = read(mm + offset as u64)?;
    if owner == 0 {
        return None;
    }
    read(owner + kernel::OFF_TASK_TGID.load() as u64)
}
