//! Memory of this process that is not of the program's allocator, which may be in the middle of a call of its own.

use std::ptr::NonNull;

/// New memory for so many values, all zero; `None` without memory. Its owner unmaps it.
pub fn map<T>(count: usize) -> Option<NonNull<T>> {
    let size = count.checked_mul(size_of::<T>())?;
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: new anonymous memory at an address of the kernel's choice.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), size, rights, flags, -1, 0) };
    NonNull::new(at.cast()).filter(|_| at != libc::MAP_FAILED)
}
