//! Calls that another program chooses one by one, so that it can compare what is counted and what is held after each.

use std::{
    collections::BTreeMap,
    error::Error,
    ffi::{c_int, c_uint, c_void},
    io::{BufRead, Write},
    ptr::null_mut,
};

use clap::ValueEnum;
use libloading::Library;

use crate::{
    Failed,
    allocate::{Block, Kind, allocate, free},
    script_content,
    script_graph::Graphs,
    script_import::Imports,
    script_table,
};

/// What the calls have created, by the number that the caller chose. It stays after it was freed, so that it can be freed again.
struct Script<'l> {
    cuda: &'l Library,
    blocks: BTreeMap<u64, Block>,
    /// Contexts; 0 is the primary one.
    contexts: BTreeMap<u64, *mut c_void>,
    pools: BTreeMap<u64, *mut c_void>,
    /// Addresses at which memory is mapped.
    mapped: BTreeMap<u64, (u64, usize)>,
    graphs: Graphs,
    imports: Imports,
}

/// Reads lines of the form `CALL NUMBER ARGUMENT...` and answers each with the code of CUDA, or `unknown`.
pub fn run(cuda: &Library) -> Result<(), Box<dyn Error>> {
    let mut script = Script {
        cuda,
        blocks: BTreeMap::new(),
        contexts: BTreeMap::new(),
        pools: BTreeMap::new(),
        mapped: BTreeMap::new(),
        graphs: Graphs::default(),
        imports: Imports::default(),
    };
    script.current()?;
    let mut output = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        match script.call(&words) {
            Some(Ok(())) => writeln!(output, "0")?,
            Some(Err(Failed(_, code))) => writeln!(output, "{code}")?,
            None => writeln!(output, "unknown")?,
        }
        output.flush()?;
    }
    Ok(())
}

impl Script<'_> {
    /// The context that the program has begun with.
    fn current(&mut self) -> Result<(), Failed> {
        let mut context: *mut c_void = null_mut();
        cuda!(self.cuda, cuCtxGetCurrent(&raw mut context => *mut *mut c_void))?;
        self.contexts.insert(0, context);
        Ok(())
    }

    fn begin(&mut self) -> Result<(), Failed> {
        let mut context: *mut c_void = null_mut();
        cuda!(self.cuda, cuDevicePrimaryCtxRetain(&raw mut context => *mut *mut c_void, 0 => c_int))?;
        self.contexts.insert(0, context);
        cuda!(self.cuda, cuCtxSetCurrent(context => *mut c_void))
    }

    /// `None` for a line that it does not know.
    fn call(&mut self, words: &[&str]) -> Option<Result<(), Failed>> {
        let cuda = self.cuda;
        let number = |at: usize| words.get(at)?.parse::<u64>().ok();
        let size = |at: usize| usize::try_from(number(at)?).ok();
        Some(match *words.first()? {
            "alloc" => {
                let kind = Kind::from_str(words.get(2)?, false).ok()?;
                let block = allocate(cuda, kind, size(3)?);
                block.map(|block| {
                    self.blocks.insert(number(1).unwrap_or(0), block);
                })
            }
            "from" => self.allocate_from(number(1)?, number(2)?, size(3)?),
            "free" => free(cuda, *self.blocks.get(&number(1)?)?),
            "stream-free" => match *self.blocks.get(&number(1)?)? {
                Block::Pointer(pointer) | Block::Graph(_, _, pointer) => {
                    cuda!(cuda, cuMemFreeAsync(pointer => u64, null_mut() => *mut c_void))
                }
                _ => return None,
            },
            "plain-free" => match *self.blocks.get(&number(1)?)? {
                Block::Stream(pointer) => cuda!(cuda, cuMemFree_v2(pointer => u64)),
                _ => return None,
            },
            "map" => self.map(number(1)?, size(2)?),
            "unmap" => {
                let (at, bytes) = *self.mapped.get(&number(1)?)?;
                cuda!(cuda, cuMemUnmap(at => u64, bytes => usize))
            }
            "retain" => {
                let ((at, _), mut handle) = (*self.mapped.get(&number(1)?)?, 0_u64);
                cuda!(cuda, cuMemRetainAllocationHandle(&raw mut handle => *mut u64, at => u64))
            }
            "trim" => self.trim(),
            "peak" => self.peak(number(1), number(2)?),
            "pool" => {
                let mut pool: *mut c_void = null_mut();
                // kind pinned, no handle types, location: device 0
                let properties: [c_int; 32] =
                    [1, 0, 1].into_iter().chain([0; 29]).collect::<Vec<_>>().try_into().ok()?;
                let to = &raw mut pool;
                let made = cuda!(cuda, cuMemPoolCreate(to => *mut *mut c_void, properties.as_ptr() => *const c_int));
                made.map(|()| {
                    self.pools.insert(number(1).unwrap_or(0), pool);
                })
            }
            "pool-destroy" => {
                let pool = *self.pools.get(&number(1)?)?;
                cuda!(cuda, cuMemPoolDestroy(pool => *mut c_void))
            }
            "context" => {
                let mut context: *mut c_void = null_mut();
                let made = cuda!(cuda, cuCtxCreate_v2(&raw mut context => *mut *mut c_void, 0 => c_uint, 0 => c_int));
                made.map(|()| {
                    self.contexts.insert(number(1).unwrap_or(0), context);
                })
            }
            "table-context" => script_table::create_context(cuda).map(|context| {
                self.contexts.insert(number(1).unwrap_or(0), context);
            }),
            "table-alloc" => script_table::allocate(cuda, size(2)?).map(|pointer| {
                self.blocks.insert(number(1).unwrap_or(0), Block::Pointer(pointer));
            }),
            "use" => {
                let context = *self.contexts.get(&number(1)?)?;
                cuda!(cuda, cuCtxSetCurrent(context => *mut c_void))
            }
            "use-none" => cuda!(cuda, cuCtxSetCurrent(null_mut() => *mut c_void)),
            "destroy" => {
                let context = *self.contexts.get(&number(1)?)?;
                cuda!(cuda, cuCtxDestroy_v2(context => *mut c_void))
            }
            "release" => cuda!(cuda, cuDevicePrimaryCtxRelease_v2(0 => c_int)),
            "reset" => cuda!(cuda, cuDevicePrimaryCtxReset_v2(0 => c_int)),
            "primary" => self.begin(),
            _ => {
                let blocks = &mut self.blocks;
                let answer = self.graphs.call(cuda, blocks, words);
                let answer = answer.or_else(|| self.imports.call(cuda, &mut self.blocks, words));
                return answer.or_else(|| script_content::call(cuda, |block| self.pointer(block), words));
            }
        })
    }

    /// The address of a block; of memory with a handle, where it is mapped.
    fn pointer(&self, block: u64) -> Option<u64> {
        match *self.blocks.get(&block)? {
            Block::Pointer(pointer) | Block::Stream(pointer) | Block::Graph(_, _, pointer) => Some(pointer),
            Block::Handle(_) => self.mapped.get(&block).map(|(at, _)| *at),
            Block::Array(_) | Block::Mipmap(_) => None,
        }
    }

    fn allocate_from(&mut self, block: u64, pool: u64, bytes: usize) -> Result<(), Failed> {
        let pool = self.pools.get(&pool).copied().unwrap_or(null_mut());
        let mut pointer = 0_u64;
        cuda!(self.cuda, cuMemAllocFromPoolAsync(
            &raw mut pointer => *mut u64, bytes => usize, pool => *mut c_void, null_mut() => *mut c_void,
        ))?;
        self.blocks.insert(block, Block::Stream(pointer));
        Ok(())
    }

    fn map(&mut self, block: u64, bytes: usize) -> Result<(), Failed> {
        let Some(Block::Handle(handle)) = self.blocks.get(&block).copied() else {
            return Err(Failed("no handle", 400));
        };
        let mut at = 0_u64;
        cuda!(self.cuda, cuMemAddressReserve(
            &raw mut at => *mut u64, bytes => usize, 0 => usize, 0 => u64, 0 => u64,
        ))?;
        cuda!(self.cuda, cuMemMap(at => u64, bytes => usize, 0 => usize, handle => u64, 0 => u64))?;
        self.mapped.insert(block, (at, bytes));
        Ok(())
    }

    fn default_pool(&self) -> Result<*mut c_void, Failed> {
        let mut pool: *mut c_void = null_mut();
        cuda!(self.cuda, cuDeviceGetMemPool(&raw mut pool => *mut *mut c_void, 0 => c_int))?;
        Ok(pool)
    }

    /// Fails if a pool, or that of the device, has ever reserved more than this.
    fn peak(&self, pool: Option<u64>, bytes: u64) -> Result<(), Failed> {
        let pool = match pool.and_then(|pool| self.pools.get(&pool)) {
            Some(pool) => *pool,
            None => self.default_pool()?,
        };
        let mut high = 0_u64;
        cuda!(self.cuda, cuMemPoolGetAttribute(pool => *mut c_void, 6 => c_int, &raw mut high => *mut u64))?;
        if high > bytes { Err(Failed("peak", 1)) } else { Ok(()) }
    }

    fn trim(&self) -> Result<(), Failed> {
        let pool = self.default_pool()?;
        cuda!(self.cuda, cuMemPoolTrimTo(pool => *mut c_void, 0 => usize))
    }
}
