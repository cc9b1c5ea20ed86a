//! Splits bulk memory operations into pieces. A guest can then be stopped in the middle of an operation.
//!
//! At the start of each function and of each loop iteration, the engine checks whether the guest must stop. It does not
//! check during a `memory.fill`, `memory.copy` or `memory.init`. On a large memory that is accessed for the first time,
//! each of these instructions can take a second or more. Before a guest is compiled, this module therefore replaces
//! each of these instructions with a call to a function that is added to the guest's module. The added function
//! performs the operation in a loop, one piece per iteration.
//!
//! Like the original instruction, an added function traps before it writes anything if the operation is outside the
//! bounds of its memory. There is one exception. If a `memory.init` reads beyond the end of its data segment, the added
//! function may write some pieces before it traps.
//!
//! The added functions are written in WASM text form. Sections without changes are copied byte by byte.

use std::borrow::Cow;

use wasm_encoder::reencode::{Reencode as _, RoundtripReencoder};
use wasm_encoder::{
    CodeSection, Component, ComponentSectionId, Encode as _, FunctionSection, Instruction, Module, RawSection,
    SectionId, TypeSection,
};
use wasmparser::{BinaryReader, FunctionBody, Import, MemoryType, Operator, RecGroup, SectionLimited, TypeRef};

/// Maximum size of a piece in bytes. Processing a piece takes less than a millisecond, even if its memory pages are
/// accessed for the first time.
const PIECE: u32 = 1 << 20;

/// Maximum nesting depth at which components are rewritten. The engine rejects components that are nested more deeply.
const MAX_DEPTH: usize = 128;

/// Section ids of a core module.
const TYPES: u8 = SectionId::Type as u8;
const IMPORTS: u8 = SectionId::Import as u8;
const FUNCTIONS: u8 = SectionId::Function as u8;
const MEMORIES: u8 = SectionId::Memory as u8;
const CODE: u8 = SectionId::Code as u8;

/// Section ids of a component.
const CORE_MODULE: u8 = ComponentSectionId::CoreModule as u8;
const NESTED: u8 = ComponentSectionId::Component as u8;

/// Returns `binary` with its bulk memory operations split into pieces, ready to be compiled.
pub(super) fn in_pieces(binary: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    match divided(&binary) {
        Some(divided) => Cow::Owned(divided),
        None => binary,
    }
}

/// Returns `binary` with its bulk memory operations split into pieces. `None`: the binary contains no bulk memory
/// operations, or is not valid WASM, which the compiler then reports.
fn divided(binary: &[u8]) -> Option<Vec<u8>> {
    of_binary(binary, 0).ok().flatten()
}

/// The error for a binary that is not valid WASM.
struct Invalid;

impl<E: std::error::Error> From<E> for Invalid {
    fn from(_: E) -> Self {
        Self
    }
}

type Result<T> = std::result::Result<T, Invalid>;

fn of_binary(binary: &[u8], depth: usize) -> Result<Option<Vec<u8>>> {
    if binary.starts_with(&Module::HEADER) {
        of_module(binary)
    } else if binary.starts_with(&Component::HEADER) && depth < MAX_DEPTH {
        of_component(binary, depth)
    } else {
        Ok(None)
    }
}

fn of_component(binary: &[u8], depth: usize) -> Result<Option<Vec<u8>>> {
    let (mut out, mut is_changed) = (Component::new(), false);
    for (id, data) in sections(binary)? {
        let changed = match id {
            CORE_MODULE | NESTED => of_binary(data, depth + 1)?,
            _ => None,
        };
        is_changed |= changed.is_some();
        out.section(&RawSection { id, data: changed.as_deref().unwrap_or(data) });
    }
    Ok(is_changed.then(|| out.finish()))
}

fn of_module(binary: &[u8]) -> Result<Option<Vec<u8>>> {
    let sections = sections(binary)?;
    let mut known = Known::default();
    for (id, content) in &sections {
        known.note(*id, content)?;
    }
    let Some((_, content)) = sections.iter().find(|(id, _)| *id == CODE) else { return Ok(None) };
    let (mut code, operations) = known.replaced(content)?;
    if operations.is_empty() {
        return Ok(None);
    }
    // Encodes the functions to add as a separate module, whose sections are then merged.
    let added: String = operations.iter().map(|operation| known.function(*operation)).collect();
    let added = wat::parse_str(format!("(module {added})"))?;
    let added = self::sections(&added)?;
    let added = |wanted: u8| added.iter().filter(move |(id, _)| *id == wanted).map(|(_, content)| *content);

    let mut out = Module::new();
    for (id, data) in sections {
        match id {
            TYPES => {
                let mut types = TypeSection::new();
                for content in [data].into_iter().chain(added(id)) {
                    RoundtripReencoder.parse_type_section(&mut types, SectionLimited::new(reader(content))?)?;
                }
                out.section(&types)
            }
            FUNCTIONS => {
                let mut functions = FunctionSection::new();
                RoundtripReencoder.parse_function_section(&mut functions, SectionLimited::new(reader(data))?)?;
                for content in added(id) {
                    for number in SectionLimited::<u32>::new(reader(content))? {
                        functions.function(known.types.saturating_add(number?));
                    }
                }
                out.section(&functions)
            }
            CODE => {
                for content in added(id) {
                    for body in SectionLimited::<FunctionBody<'_>>::new(reader(content))? {
                        code.raw(body?.as_bytes());
                    }
                }
                out.section(&code)
            }
            _ => out.section(&RawSection { id, data }),
        };
    }
    Ok(Some(out.finish()))
}

/// Returns the id and the content of each section of a module or component.
fn sections(binary: &[u8]) -> Result<Vec<(u8, &[u8])>> {
    let mut reader = reader(binary);
    reader.read_bytes(Module::HEADER.len())?;
    let mut sections = Vec::new();
    while !reader.eof() {
        let (id, size) = (reader.read_u8()?, reader.read_var_u32()?);
        sections.push((id, reader.read_bytes(size as usize)?));
    }
    Ok(sections)
}

fn reader(bytes: &[u8]) -> BinaryReader<'_> {
    BinaryReader::new(bytes, 0)
}

/// A bulk memory operation to split into pieces, with the indices of the memories and the data segment that it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bulk {
    Fill(u32),
    /// Copies to a memory (first field) from a memory (second field).
    Copy(u32, u32),
    /// Copies to a memory (first field) from a data segment (second field).
    Init(u32, u32),
}

impl Bulk {
    fn of(operator: &Operator<'_>) -> Option<Self> {
        match operator {
            Operator::MemoryFill { mem } => Some(Self::Fill(*mem)),
            Operator::MemoryCopy { dst_mem, src_mem } => Some(Self::Copy(*dst_mem, *src_mem)),
            Operator::MemoryInit { data_index, mem } => Some(Self::Init(*mem, *data_index)),
            _ => None,
        }
    }
}

/// The properties of a module that the rewriting needs: the number of types and functions, and the memories.
#[derive(Default)]
struct Known {
    types: u32,
    functions: u32,
    /// Address type of each memory: `i32` or `i64`.
    memories: Vec<&'static str>,
}

impl Known {
    fn note(&mut self, id: u8, content: &[u8]) -> Result<()> {
        let reader = reader(content);
        match id {
            TYPES => {
                for group in SectionLimited::<RecGroup>::new(reader)? {
                    self.types += u32::try_from(group?.types().len()).unwrap_or(u32::MAX);
                }
            }
            IMPORTS => {
                for import in wasmparser::ImportSectionReader::new(reader)?.into_imports() {
                    let Import { ty, .. } = import?;
                    match ty {
                        TypeRef::Func(_) | TypeRef::FuncExact(_) => self.functions += 1,
                        TypeRef::Memory(memory) => self.memories.push(addresses(&memory)),
                        TypeRef::Table(_) | TypeRef::Global(_) | TypeRef::Tag(_) => {}
                    }
                }
            }
            FUNCTIONS => self.functions = self.functions.saturating_add(SectionLimited::<u32>::new(reader)?.count()),
            MEMORIES => {
                for memory in SectionLimited::<MemoryType>::new(reader)? {
                    self.memories.push(addresses(&memory?));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Replaces each bulk memory operation in the code section with a call to an added function. Returns the new
    /// section, and the operations that need an added function. The caller must add the functions in the order of these
    /// operations.
    fn replaced(&self, content: &[u8]) -> Result<(CodeSection, Vec<Bulk>)> {
        let (mut code, mut operations) = (CodeSection::new(), Vec::new());
        for body in SectionLimited::<FunctionBody<'_>>::new(reader(content))? {
            let body = body?;
            let range = body.range();
            let (mut out, mut copied) = (Vec::with_capacity(range.len()), range.start);
            let mut operators = body.get_operators_reader()?;
            while !operators.eof() {
                let (operator, at) = operators.read_with_offset()?;
                let Some(bulk) = Bulk::of(&operator) else { continue };
                out.extend_from_slice(content.get(copied..at).unwrap_or_default());
                let place = operations.iter().position(|one| *one == bulk).unwrap_or_else(|| {
                    operations.push(bulk);
                    operations.len() - 1
                });
                let place = u32::try_from(place).unwrap_or(u32::MAX);
                Instruction::Call(self.functions.saturating_add(place)).encode(&mut out);
                copied = operators.original_position();
            }
            out.extend_from_slice(content.get(copied..range.end).unwrap_or_default());
            code.raw(&out);
        }
        Ok((code, operations))
    }

    /// Returns the text form of the function that performs an operation. The function has the same parameters as the
    /// instruction. The last parameter is the length.
    fn function(&self, bulk: Bulk) -> String {
        let memory = |number: u32| self.memories.get(number as usize).copied().unwrap_or("i32");
        let (name, to, second, length) = match bulk {
            Bulk::Fill(to) => (format!("memory.fill {to}"), memory(to), "i32", memory(to)),
            Bulk::Copy(to, from) => {
                let length = if memory(to) == "i64" { memory(from) } else { "i32" };
                (format!("memory.copy {to} {from}"), memory(to), memory(from), length)
            }
            Bulk::Init(to, data) => (format!("memory.init {to} {data}"), memory(to), "i32", "i32"),
        };
        let piece = format!("({length}.const {PIECE})");
        let shorter = format!("({length}.sub (local.get 2) {piece})");
        let first_piece = format!("({name} (local.get 0) (local.get 1) {piece})");
        // Advances the address in a parameter by one piece.
        let advance =
            |number, width| format!("(local.set {number} ({width}.add (local.get {number}) ({width}.const {PIECE})))");
        let pieces = match bulk {
            // The length of the data segment is unknown here, so a piece may be beyond the end of the segment and trap.
            // Earlier pieces may already have been written, but nothing reads them, because the trap ends the guest.
            Bulk::Fill(target) | Bulk::Init(target, _) => {
                let fits = fits(target, to, 0, length);
                let advance =
                    advance(0, to) + &if name.starts_with("memory.init") { advance(1, second) } else { String::new() };
                format!(
                    "(if {fits} (then (loop $again {first_piece} {advance}
                        (br_if $again ({length}.gt_u (local.tee 2 {shorter}) {piece})))))"
                )
            }
            Bulk::Copy(target, source) => {
                let both_fit = format!("(i32.and {} {})", fits(target, to, 0, length), fits(source, second, 1, length));
                // If the ranges overlap, bytes must be read before they are overwritten. The function therefore copies
                // forward if the target starts at or before the source, and backward otherwise.
                let is_before = format!("(i64.le_u {} {})", long(to, 0), long(second, 1));
                let advance = advance(0, to) + &advance(1, second);
                let end = |number, width| {
                    let length = if width == length { "(local.get 2)".into() } else { long(length, 2) };
                    format!("({width}.add (local.get {number}) {length})")
                };
                let (to_end, from_end) = (end(0, to), end(1, second));
                format!(
                    "(if {both_fit} (then (if {is_before}
                        (then (loop $again {first_piece} {advance}
                            (br_if $again ({length}.gt_u (local.tee 2 {shorter}) {piece}))))
                        (else (loop $again (local.set 2 {shorter}) ({name} {to_end} {from_end} {piece})
                            (br_if $again ({length}.gt_u (local.get 2) {piece})))))))"
                )
            }
        };
        // The final instruction processes the last piece. If the operation is out of bounds, the loop is skipped and
        // the final instruction traps.
        format!(
            "(func (param {to} {second} {length}) (if ({length}.gt_u (local.get 2) {piece}) (then {pieces}))
                ({name} (local.get 0) (local.get 1) (local.get 2)))"
        )
    }
}

/// Returns the address type of a memory: `i32` or `i64`.
fn addresses(memory: &MemoryType) -> &'static str {
    if memory.memory64 { "i64" } else { "i32" }
}

/// Returns an expression for the value of a parameter, extended to 64 bits. `width`: type of the parameter.
fn long(width: &str, parameter: u32) -> String {
    let value = format!("(local.get {parameter})");
    if width == "i64" { value } else { format!("(i64.extend_i32_u {value})") }
}

/// Returns an expression that checks whether a range lies within a memory. `parameter`: number of the parameter that
/// contains the address, which has the type `width`. Parameter 2 contains the length, which has the type `length`.
fn fits(memory: u32, width: &str, parameter: u32, length: &str) -> String {
    let pages = format!("(memory.size {memory})");
    let pages = if width == "i64" { pages } else { format!("(i64.extend_i32_u {pages})") };
    let (size, length, address) =
        (format!("(i64.shl {pages} (i64.const 16))"), long(length, 2), long(width, parameter));
    format!("(i32.and (i64.le_u {length} {size}) (i64.le_u {address} (i64.sub {size} {length})))")
}

#[cfg(test)]
mod tests;
