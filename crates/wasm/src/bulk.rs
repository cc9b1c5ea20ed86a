//! Bulk memory operations in pieces, so that a guest can be stopped in the midst of one.
//!
//! The engine looks whether a guest is to stop when a function begins and when a loop goes round, and never within
//! `memory.fill` or `memory.copy`, which take a second and more for a large memory that is touched for the first time. So before a guest is compiled, each
//! of these instructions becomes a call of a function that is added to its module, and does the same in a loop, a piece at a time.
//! What is out of bounds traps before anything is written, as it does without this.

use std::borrow::Cow;

use wasmparser::{
    BinaryReader, BinaryReaderError, FunctionBody, Import, MemoryType, Operator, RecGroup, SectionLimited, TypeRef,
};

/// The largest piece, in bytes: less than a millisecond's work, even where each page is touched for the first time. A power of two.
const PIECE: u64 = 1 << 20;

/// How deep components may lie in one another; the engine takes no more.
const MAX_DEPTH: usize = 128;

/// The first bytes of a core module, and of a component.
const MODULE: &[u8; 8] = b"\0asm\x01\0\0\0";
const COMPONENT: &[u8; 8] = b"\0asm\x0d\0\x01\0";

/// Sections of a core module.
const TYPES: u8 = 1;
const IMPORTS: u8 = 2;
const FUNCTIONS: u8 = 3;
const MEMORIES: u8 = 5;
const CODE: u8 = 10;

/// Sections of a component.
const CORE_MODULE: u8 = 1;
const NESTED: u8 = 4;

/// Opcodes, as the core specification numbers them.
mod op {
    pub(super) const LOOP: [u8; 2] = [0x03, 0x40];
    pub(super) const IF: [u8; 2] = [0x04, 0x40];
    pub(super) const ELSE: u8 = 0x05;
    pub(super) const END: u8 = 0x0b;
    pub(super) const AGAIN: [u8; 2] = [0x0d, 0];
    pub(super) const CALL: u8 = 0x10;
    pub(super) const GET: u8 = 0x20;
    pub(super) const SET: u8 = 0x21;
    pub(super) const TEE: u8 = 0x22;
    pub(super) const MEMORY_SIZE: u8 = 0x3f;
    pub(super) const I32_CONST: u8 = 0x41;
    pub(super) const I64_CONST: u8 = 0x42;
    pub(super) const I64_LE_U: u8 = 0x58;
    pub(super) const I32_AND: u8 = 0x71;
    pub(super) const I64_SUB: u8 = 0x7d;
    pub(super) const I64_SHL: u8 = 0x86;
    pub(super) const EXTEND: u8 = 0xad;
    pub(super) const BULK: u8 = 0xfc;
    pub(super) const COPY: u8 = 0x0a;
    pub(super) const FILL: u8 = 0x0b;
}

/// What is to be compiled of a binary: the same with its bulk memory operations in pieces.
pub(super) fn in_pieces(binary: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    match divided(&binary) {
        Some(divided) => Cow::Owned(divided),
        None => binary,
    }
}

/// The same binary with its bulk memory operations in pieces; `None`: it has none, or is no valid WASM, which the compiler then says.
fn divided(binary: &[u8]) -> Option<Vec<u8>> {
    of_binary(binary, 0).ok().flatten()
}

type Result<T> = std::result::Result<T, BinaryReaderError>;

fn of_binary(binary: &[u8], depth: usize) -> Result<Option<Vec<u8>>> {
    if binary.starts_with(MODULE) {
        of_module(binary)
    } else if binary.starts_with(COMPONENT) && depth < MAX_DEPTH {
        of_component(binary, depth)
    } else {
        Ok(None)
    }
}

fn of_component(binary: &[u8], depth: usize) -> Result<Option<Vec<u8>>> {
    let (mut out, mut is_changed) = (COMPONENT.to_vec(), false);
    for (id, content) in sections(binary)? {
        let changed = match id {
            CORE_MODULE | NESTED => of_binary(content, depth + 1)?,
            _ => None,
        };
        is_changed |= changed.is_some();
        section(&mut out, id, changed.as_deref().unwrap_or(content));
    }
    Ok(is_changed.then_some(out))
}

/// The sections of a module or component: their ids and contents.
fn sections(binary: &[u8]) -> Result<Vec<(u8, &[u8])>> {
    let mut reader = BinaryReader::new(binary, 0);
    reader.read_bytes(MODULE.len())?;
    let mut sections = Vec::new();
    while !reader.eof() {
        let (id, size) = (reader.read_u8()?, reader.read_var_u32()?);
        sections.push((id, reader.read_bytes(size as usize)?));
    }
    Ok(sections)
}

fn section(out: &mut Vec<u8>, id: u8, content: &[u8]) {
    out.push(id);
    unsigned(out, content.len() as u64);
    out.extend_from_slice(content);
}

/// An operation that is done in pieces, with the memories that it works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bulk {
    Fill(u32),
    /// To this memory, from that.
    Copy(u32, u32),
}

impl Bulk {
    fn of(operator: &Operator<'_>) -> Option<Self> {
        match operator {
            Operator::MemoryFill { mem } => Some(Self::Fill(*mem)),
            Operator::MemoryCopy { dst_mem, src_mem } => Some(Self::Copy(*dst_mem, *src_mem)),
            _ => None,
        }
    }
}

/// What of a module matters here.
#[derive(Default)]
struct Module {
    types: u32,
    functions: u32,
    /// Whether each memory has 64-bit addresses.
    memories: Vec<bool>,
    /// What is added, in the order of the functions.
    added: Vec<Bulk>,
}

fn of_module(binary: &[u8]) -> Result<Option<Vec<u8>>> {
    let sections = sections(binary)?;
    let mut module = Module::default();
    for (id, content) in &sections {
        module.note(*id, content)?;
    }
    let code = sections.iter().find(|(id, _)| *id == CODE);
    let Some(code) = code.map(|(_, content)| module.code(content)).transpose()? else { return Ok(None) };
    if module.added.is_empty() {
        return Ok(None);
    }
    let mut out = MODULE.to_vec();
    for (id, content) in sections {
        match id {
            TYPES => {
                let signatures = module.added.iter().map(|bulk| module.signature(*bulk)).collect();
                section(&mut out, id, &longer(content, signatures)?);
            }
            FUNCTIONS => {
                let types = (module.types..).zip(&module.added).map(|(number, _)| leb(number.into())).collect();
                section(&mut out, id, &longer(content, types)?);
            }
            CODE => section(&mut out, id, &code),
            _ => section(&mut out, id, content),
        }
    }
    Ok(Some(out))
}

/// A section that is a list, with more entries.
fn longer(content: &[u8], entries: Vec<Vec<u8>>) -> Result<Vec<u8>> {
    let mut reader = BinaryReader::new(content, 0);
    let count = u64::from(reader.read_var_u32()?) + entries.len() as u64;
    let mut out = leb(count);
    out.extend_from_slice(reader.read_bytes(reader.bytes_remaining())?);
    entries.into_iter().for_each(|entry| out.extend(entry));
    Ok(out)
}

impl Module {
    fn note(&mut self, id: u8, content: &[u8]) -> Result<()> {
        let reader = BinaryReader::new(content, 0);
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
                        TypeRef::Memory(memory) => self.memories.push(memory.memory64),
                        TypeRef::Table(_) | TypeRef::Global(_) | TypeRef::Tag(_) => {}
                    }
                }
            }
            FUNCTIONS => self.functions = self.functions.saturating_add(SectionLimited::<u32>::new(reader)?.count()),
            MEMORIES => {
                for memory in SectionLimited::<MemoryType>::new(reader)? {
                    self.memories.push(memory?.memory64);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The code section with each operation replaced, and the functions that take their place.
    fn code(&mut self, content: &[u8]) -> Result<Vec<u8>> {
        let mut bodies = Vec::new();
        for body in SectionLimited::<FunctionBody<'_>>::new(BinaryReader::new(content, 0))? {
            bodies.push(self.body(content, &body?)?);
        }
        bodies.extend(self.added.iter().map(|bulk| self.function(*bulk)));
        let mut out = leb(bodies.len() as u64);
        for body in bodies {
            unsigned(&mut out, body.len() as u64);
            out.extend(body);
        }
        Ok(out)
    }

    fn body(&mut self, content: &[u8], body: &FunctionBody<'_>) -> Result<Vec<u8>> {
        let range = body.range();
        let (mut out, mut copied) = (Vec::with_capacity(range.len()), range.start);
        let mut operators = body.get_operators_reader()?;
        while !operators.eof() {
            let (operator, at) = operators.read_with_offset()?;
            let Some(bulk) = Bulk::of(&operator) else { continue };
            out.extend_from_slice(content.get(copied..at).unwrap_or_default());
            out.push(op::CALL);
            unsigned(&mut out, self.place(bulk));
            copied = operators.original_position();
        }
        out.extend_from_slice(content.get(copied..range.end).unwrap_or_default());
        Ok(out)
    }

    /// The index of the function that does this.
    fn place(&mut self, bulk: Bulk) -> u64 {
        let found = self.added.iter().position(|added| *added == bulk);
        let place = found.unwrap_or_else(|| {
            self.added.push(bulk);
            self.added.len() - 1
        });
        u64::from(self.functions) + place as u64
    }

    /// Addresses of a memory.
    fn address(&self, memory: u32) -> Width {
        match self.memories.get(memory as usize) {
            Some(true) => Width::Long,
            _ => Width::Short,
        }
    }

    /// The types of the parameters.
    fn widths(&self, bulk: Bulk) -> [Width; 3] {
        match bulk {
            Bulk::Fill(memory) => [self.address(memory), Width::Short, self.address(memory)],
            Bulk::Copy(to, from) => {
                let (to, from) = (self.address(to), self.address(from));
                [to, from, if to == Width::Long { from } else { Width::Short }]
            }
        }
    }

    fn signature(&self, bulk: Bulk) -> Vec<u8> {
        let [first, second, third] = self.widths(bulk).map(Width::code);
        vec![0x60, 3, first, second, third, 0]
    }

    /// The body of the function that does this. Its parameters are those of the instruction, of which the last is the length.
    fn function(&self, bulk: Bulk) -> Vec<u8> {
        let widths = self.widths(bulk);
        let [to, second, length] = widths;
        let mut body = Body(vec![0]);
        body.get(2).piece(length).op(length.gt_u()).ops(&op::IF);
        match bulk {
            Bulk::Fill(memory) => {
                body.fits(0, memory, widths).ops(&op::IF).ops(&op::LOOP);
                body.get(0).get(1).piece(length).bulk(bulk);
                body.add(0, to).take(length).ops(&op::AGAIN).op(op::END);
            }
            Bulk::Copy(target, source) => {
                body.fits(0, target, widths).fits(1, source, widths).op(op::I32_AND).ops(&op::IF);
                // Whatever overlaps is read before it is written over.
                body.get(0).extended(to).get(1).extended(second).op(op::I64_LE_U).ops(&op::IF).ops(&op::LOOP);
                body.get(0).get(1).piece(length).bulk(bulk);
                body.add(0, to).add(1, second).take(length).ops(&op::AGAIN).op(op::END).op(op::ELSE).ops(&op::LOOP);
                body.get(2).piece(length).op(length.sub()).op(op::SET).index(2);
                for (parameter, width) in [(0, to), (1, second)] {
                    body.get(parameter).get(2);
                    if width != length {
                        body.op(op::EXTEND);
                    }
                    body.op(width.add());
                }
                body.piece(length).bulk(bulk);
                body.get(2).piece(length).op(length.gt_u()).ops(&op::AGAIN).op(op::END).op(op::END);
            }
        }
        body.op(op::END).op(op::END).get(0).get(1).get(2).bulk(bulk).op(op::END);
        body.0
    }
}

/// The type of an address or a length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Width {
    /// 32 bits.
    Short,
    /// 64 bits.
    Long,
}

impl Width {
    fn code(self) -> u8 {
        self.choose(0x7f, 0x7e)
    }

    fn gt_u(self) -> u8 {
        self.choose(0x4b, 0x56)
    }

    fn add(self) -> u8 {
        self.choose(0x6a, 0x7c)
    }

    fn sub(self) -> u8 {
        self.choose(0x6b, 0x7d)
    }

    fn choose(self, short: u8, long: u8) -> u8 {
        match self {
            Self::Short => short,
            Self::Long => long,
        }
    }
}

/// The body of a function, as it is written.
struct Body(Vec<u8>);

impl Body {
    fn op(&mut self, op: u8) -> &mut Self {
        self.0.push(op);
        self
    }

    fn ops(&mut self, ops: &[u8]) -> &mut Self {
        self.0.extend_from_slice(ops);
        self
    }

    fn index(&mut self, index: u32) -> &mut Self {
        unsigned(&mut self.0, index.into());
        self
    }

    fn get(&mut self, parameter: u32) -> &mut Self {
        self.op(op::GET).index(parameter)
    }

    /// The length of a piece.
    fn piece(&mut self, width: Width) -> &mut Self {
        self.op(width.choose(op::I32_CONST, op::I64_CONST));
        signed(&mut self.0, PIECE);
        self
    }

    /// Makes what is on the stack 64 bits wide.
    fn extended(&mut self, width: Width) -> &mut Self {
        if width == Width::Short {
            self.op(op::EXTEND);
        }
        self
    }

    /// Moves a parameter on by a piece.
    fn add(&mut self, parameter: u32, width: Width) -> &mut Self {
        self.get(parameter).piece(width).op(width.add()).op(op::SET).index(parameter)
    }

    /// Takes a piece from the length; whether more than one is left.
    fn take(&mut self, width: Width) -> &mut Self {
        self.get(2).piece(width).op(width.sub()).op(op::TEE).index(2).piece(width).op(width.gt_u())
    }

    /// The size of a memory in bytes.
    fn size(&mut self, memory: u32, width: Width) -> &mut Self {
        self.op(op::MEMORY_SIZE).index(memory).extended(width).op(op::I64_CONST);
        signed(&mut self.0, 16);
        self.op(op::I64_SHL)
    }

    /// Whether the length fits a memory from the address on that this parameter has.
    fn fits(&mut self, parameter: u32, memory: u32, widths: [Width; 3]) -> &mut Self {
        let (address, length) = (widths[parameter as usize], widths[2]);
        self.get(2).extended(length).size(memory, address).op(op::I64_LE_U);
        self.get(parameter).extended(address);
        self.size(memory, address).get(2).extended(length).op(op::I64_SUB).op(op::I64_LE_U).op(op::I32_AND)
    }

    fn bulk(&mut self, bulk: Bulk) -> &mut Self {
        match bulk {
            Bulk::Fill(memory) => self.ops(&[op::BULK, op::FILL]).index(memory),
            Bulk::Copy(to, from) => self.ops(&[op::BULK, op::COPY]).index(to).index(from),
        }
    }
}

fn leb(number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    unsigned(&mut out, number);
    out
}

/// Writes a number in LEB128.
fn unsigned(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(low(number) | 0x80);
        number >>= 7;
    }
    out.push(low(number));
}

/// The same where a number may be negative, though this is not.
fn signed(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x40 {
        out.push(low(number) | 0x80);
        number >>= 7;
    }
    out.push(low(number));
}

/// The lowest seven bits.
fn low(number: u64) -> u8 {
    number.to_le_bytes()[0] & 0x7f
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use wasmtime::{Engine, Instance, Memory, Store, UpdateDeadline};

    use super::*;

    const MODULE_TEXT: &str = "(module (import \"x\" \"y\" (func)) (memory (export \"memory\") 64)
        (func (export \"fill\") (param i32 i32 i32) (memory.fill (local.get 0) (local.get 1) (local.get 2)))
        (func (export \"copy\") (param i32 i32 i32) (memory.copy (local.get 0) (local.get 1) (local.get 2)))
        (func (export \"both\") (memory.fill (i32.const 1) (i32.const 2) (i32.const 3)) (memory.copy (i32.const 1) (i32.const 2) (i32.const 3))))";

    /// A module in an instance, and how often its guest was looked at.
    struct Run {
        store: Store<()>,
        instance: Instance,
        memory: Memory,
        looks: Arc<AtomicUsize>,
    }

    fn run(binary: &[u8]) -> Run {
        let mut config = wasmtime::Config::new();
        config.epoch_interruption(true).wasm_multi_memory(true).wasm_memory64(true);
        let engine = Engine::new(&config).unwrap();
        let mut store = Store::new(&engine, ());
        let looks = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&looks);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            // Due again at once: it is asked at every look.
            Ok(UpdateDeadline::Continue(0))
        });
        engine.increment_epoch();
        let mut linker = wasmtime::Linker::new(&engine);
        linker.func_wrap("x", "y", || {}).unwrap();
        let module = wasmtime::Module::new(&engine, binary).unwrap();
        let instance = linker.instantiate(&mut store, &module).unwrap();
        let memory = instance.get_memory(&mut store, "memory").unwrap();
        Run { store, instance, memory, looks }
    }

    impl Run {
        fn call(&mut self, name: &str, (a, b, c): (u32, u32, u32)) -> std::result::Result<(), String> {
            let function = self.instance.get_typed_func::<(u32, u32, u32), ()>(&mut self.store, name).unwrap();
            function.call(&mut self.store, (a, b, c)).map_err(|error| error.root_cause().to_string())
        }
    }

    #[test]
    fn pieces_do_the_same_as_the_whole() {
        let binary = wat::parse_str(MODULE_TEXT).unwrap();
        let (mut whole, mut pieces) = (run(&binary), run(&divided(&binary).unwrap()));
        let (mib, end) = (1 << 20, 4 << 20);
        for at in (0..end).step_by(4096) {
            for one in [&mut whole, &mut pieces] {
                one.memory.data_mut(&mut one.store)[at..at + 4]
                    .copy_from_slice(&u32::try_from(at).unwrap().to_le_bytes());
            }
        }
        let (mib, end) = (mib as u32, u32::try_from(end).unwrap());
        let calls = [
            ("fill", (0, 7, 3 * mib + 1)),
            ("fill", (end - 2 * mib, 9, 2 * mib)),
            ("fill", (end - 2 * mib + 1, 1, 2 * mib)),
            ("fill", (u32::MAX, 1, 2 * mib)),
            ("fill", (0, 1, u32::MAX)),
            ("fill", (end + 1, 1, 0)),
            ("copy", (5, 3, 3 * mib)),
            ("copy", (3, 5, 3 * mib)),
            ("copy", (mib, 0, 3 * mib)),
            ("copy", (0, mib / 2, 2 * mib + 1)),
            ("copy", (mib, mib, 3 * mib)),
            ("copy", (mib + 1, 0, 3 * mib)),
            ("copy", (0, mib + 1, 3 * mib)),
            ("copy", (0, 10, mib)),
        ];
        for (name, arguments) in calls {
            let (one, other) = (whole.call(name, arguments), pieces.call(name, arguments));
            assert_eq!(one, other, "{name} {arguments:?}");
            let is_same = whole.memory.data(&whole.store) == pieces.memory.data(&pieces.store);
            assert!(is_same, "{name} {arguments:?}");
        }
    }

    #[test]
    fn a_guest_is_looked_at_in_the_midst_of_an_operation() {
        let binary = wat::parse_str(MODULE_TEXT).unwrap();
        let looks = |binary: &[u8], name| {
            let mut run = run(binary);
            let before = run.looks.load(Ordering::Relaxed);
            run.call(name, (0, 1, 4_000_000)).unwrap();
            run.looks.load(Ordering::Relaxed) - before
        };
        for name in ["fill", "copy"] {
            assert!(looks(&binary, name) < 3);
            assert!(looks(&divided(&binary).unwrap(), name) >= 3, "{name}");
        }
    }

    #[test]
    fn memories_of_every_kind_and_modules_in_components_are_covered() {
        let text = "(module (memory i64 1) (memory 1) (memory (export \"memory\") 1)
            (func (memory.fill 0 (i64.const 0) (i32.const 1) (i64.const 2)))
            (func (memory.copy 0 1 (i64.const 0) (i32.const 1) (i32.const 2)))
            (func (memory.copy 1 0 (i32.const 0) (i64.const 1) (i32.const 2)))
            (func (memory.copy 0 0 (i64.const 0) (i64.const 1) (i64.const 2))))";
        let module = divided(&wat::parse_str(text).unwrap()).unwrap();
        run(&module);
        let component = format!("(component (component {}) {MODULE_TEXT})", text.replace("(module", "(core module"));
        let component = component.replace(") (module", ") (core module");
        let component = divided(&wat::parse_str(component).unwrap()).unwrap();
        let mut config = wasmtime::Config::new();
        config.wasm_multi_memory(true).wasm_memory64(true);
        wasmtime::component::Component::from_binary(&Engine::new(&config).unwrap(), &component).unwrap();
    }

    #[test]
    fn what_has_none_or_is_damaged_is_left_as_it_is() {
        let plain = wat::parse_str("(module (func))").unwrap();
        assert_eq!(divided(&plain), None);
        assert_eq!(divided(b""), None);
        let binary = wat::parse_str(MODULE_TEXT).unwrap();
        for length in 0..binary.len() {
            let _ = divided(&binary[..length]);
        }
    }
}
