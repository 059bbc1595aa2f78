//! Kernel memory as something that can be read. Who reads it, and how, is not known here.

/// Reads kernel memory.
pub trait Memory: Send {
    /// Fills `into` from an address; `false` when it is not there.
    fn read(&self, address: u64, into: &mut [u8]) -> bool;
    /// Address of the calling thread's `task_struct`.
    fn own_task(&self) -> Option<u64>;

    /// A 64-bit word, or a pointer.
    fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes).then(|| u64::from_ne_bytes(bytes))
    }

    /// A 32-bit word.
    fn half(&self, address: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes).then(|| u32::from_ne_bytes(bytes))
    }

    /// A short text that ends with a zero.
    fn text(&self, address: u64) -> Option<String> {
        let mut bytes = [0; 48];
        if !self.read(address, &mut bytes) {
            return None;
        }
        let end = bytes.iter().position(|byte| *byte == 0)?;
        String::from_utf8(bytes[..end].to_vec()).ok()
    }
}

/// Whether this can be an address of the kernel's, with four or five levels of page tables.
pub fn is_kernel_address(address: u64) -> bool {
    address >> 56 == 0xff
}
