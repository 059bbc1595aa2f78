//! From a structure and an offset to the name that a kernel developer would write: `inode.i_rwsem`, `journal_s.j_state_lock`.
//! Knows types only, no address and no instance.

use crate::kernel::{btf::MemberPath, types::Types};

/// Types that are locks. The path to a lock is cut at the first of them: what lies inside is the lock's own business.
const LOCKS: [&str; 16] = [
    "spinlock_t",
    "raw_spinlock_t",
    "struct spinlock",
    "struct raw_spinlock",
    "rwlock_t",
    "struct rwlock",
    "struct qrwlock",
    "struct qspinlock",
    "struct mutex",
    "struct rw_semaphore",
    "struct percpu_rw_semaphore",
    "struct semaphore",
    "struct rt_mutex",
    "struct rt_mutex_base",
    "struct rwbase_rt",
    "seqlock_t",
];

/// Structures that are embedded in others and known by their own name: `inode.i_rwsem`, not `ext4_inode_info.vfs_inode.i_rwsem`.
const KNOWN_BY_THEMSELVES: [&str; 7] = [
    "struct inode",
    "struct address_space",
    "struct sock",
    "struct socket",
    "struct super_block",
    "struct zone",
    "struct lruvec",
];

/// The class of the lock at an offset of a structure; `None` when no lock lies there.
pub fn class(types: &Types, structure: &str, offset: u32) -> Option<String> {
    let paths = types.at_offset(structure, offset);
    let lock = paths.iter().find(|member| is_lock(&member.type_name))?;
    let detail = if lock.rest == 0 { String::new() } else { format!("+{}", lock.rest) };
    let own = paths
        .iter()
        .rfind(|outer| KNOWN_BY_THEMSELVES.contains(&outer.type_name.as_str()) && is_inside(lock, outer));
    Some(match own {
        Some(outer) => {
            let name = outer.type_name.trim_start_matches("struct ");
            format!("{name}.{}{detail}", &lock.path[outer.path.len() + 1..])
        }
        None => format!("{structure}.{}{detail}", lock.path),
    })
}

fn is_lock(type_name: &str) -> bool {
    LOCKS.contains(&type_name)
}

fn is_inside(inner: &MemberPath, outer: &MemberPath) -> bool {
    inner.path.strip_prefix(&outer.path).is_some_and(|rest| rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::kernel::btf::Btf;

    #[test]
    fn this_kernels_own_locks_have_their_developers_names() {
        let Ok(vmlinux) = Btf::vmlinux() else { return };
        let types = Types::new(Arc::new(vmlinux));
        for (structure, path, wanted) in [
            ("mm_struct", "mm_struct.mmap_lock", "mm_struct.mmap_lock"),
            ("inode", "inode.i_rwsem", "inode.i_rwsem"),
            ("inode", "inode.i_data.invalidate_lock", "address_space.invalidate_lock"),
            ("task_struct", "task_struct.pi_lock", "task_struct.pi_lock"),
        ] {
            let offset = u32::try_from(types.offset(path).unwrap()).unwrap();
            assert_eq!(class(&types, structure, offset).as_deref(), Some(wanted));
        }
        assert_eq!(class(&types, "inode", 0), None);
    }
}
