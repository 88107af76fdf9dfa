//! Reads and writes through the caller's pointers.

use std::ffi::{CStr, c_char};

use silicon::Code;

/// Writes one value.
pub fn put<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: NVML demands that a pointer that is not null points to a writable value of its type.
    unsafe { to.write(value) };
    Ok(())
}

/// Reads one value.
pub fn get<T: Copy>(from: *const T) -> Result<T, Code> {
    if from.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: NVML demands that a pointer that is not null points to a readable value of its type.
    Ok(unsafe { from.read() })
}

/// Reads a string.
pub fn text<'a>(from: *const c_char) -> Result<&'a str, Code> {
    if from.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: NVML demands NUL-terminated strings, which outlive the call.
    unsafe { CStr::from_ptr(from) }.to_str().map_err(|_| Code::INVALID_ARGUMENT)
}

/// Writes a string with its NUL into a buffer of this length.
pub fn put_text(to: *mut c_char, length: u32, text: &str) -> Result<(), Code> {
    if to.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    if text.len() >= length as usize {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    // SAFETY: the buffer has `length` bytes by NVML's contract, more than the text and its NUL need.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

/// A string in a field of a struct, cut to fit.
pub fn field<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    let capacity = field.iter_mut().take(N - 1);
    // a C character is signed or not, depending on the processor
    capacity.zip(text.bytes()).for_each(|(to, from)| *to = c_char::from_ne_bytes([from]));
    field
}

/// Writes a list of unknown length: always the number, the items if the buffer is large enough.
pub fn put_list<T>(items: Vec<T>, to: *mut T, count: *mut u32) -> Result<(), Code> {
    let capacity = get(count)? as usize;
    let length = items.len();
    put(count, u32::try_from(length).map_err(|_| Code::UNKNOWN)?)?;
    if length > capacity || (to.is_null() && length > 0) {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    put_all(items, to)
}

/// Writes items into a buffer that is large enough by NVML's contract.
pub fn put_all<T>(items: Vec<T>, to: *mut T) -> Result<(), Code> {
    if to.is_null() && !items.is_empty() {
        return Err(Code::INVALID_ARGUMENT);
    }
    for (i, item) in items.into_iter().enumerate() {
        // SAFETY: the caller checked, or NVML demands, that the buffer has capacity for every item.
        unsafe { to.add(i).write(item) };
    }
    Ok(())
}
