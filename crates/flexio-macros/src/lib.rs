//! The attributes of `verbless_flexio_dev` that make functions of a DPA program callable by its
//! host; that crate re-exports and documents them.
//!
//! A function keeps its Rust form. The macro adds an entry point of the same name that takes and
//! returns words in registers, and a symbol that describes the function to hosts:
//! `dpa:add(u64,u32)->u64` for an RPC, `dpa:on_packet` for an event handler.

#[cfg(feature = "embed")]
mod embed;

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Error, FnArg, ItemFn, Result, ReturnType, Signature, Type, parse_macro_input};

/// The types of arguments and results: those that fit a register.
const WORDS: [&str; 11] =
    ["u8", "u16", "u32", "u64", "usize", "i8", "i16", "i32", "i64", "isize", "bool"];
/// Registers for arguments.
const REGISTERS: usize = 8;
/// Maximum number of arguments. If registers cannot hold them, they are in a buffer, whose address
/// is in the first register.
const ARGUMENTS: usize = 16;

/// A function for calls by the host (`__dpa_rpc__`).
#[proc_macro_attribute]
pub fn rpc(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as ItemFn);
    done(no_options(&attribute.into()).and_then(|()| expand_rpc(&item)))
}

/// A function for events (`__dpa_global__`).
#[proc_macro_attribute]
pub fn event_handler(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as ItemFn);
    done(no_options(&attribute.into()).and_then(|()| expand_handler(&item)))
}

/// Embeds a program into the host's binary.
#[cfg(feature = "embed")]
#[proc_macro]
pub fn embed(item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as embed::Embed);
    done(embed::expand(&item))
}

fn done(expanded: Result<Tokens>) -> TokenStream {
    expanded.unwrap_or_else(Error::into_compile_error).into()
}

fn no_options(attribute: &Tokens) -> Result<()> {
    match attribute.is_empty() {
        true => Ok(()),
        false => Err(Error::new(attribute.span(), "this attribute takes no options")),
    }
}

/// Names of functions that the compiler calls by itself.
const RUNTIME: [&str; 6] = ["memcpy", "memmove", "memset", "memcmp", "bcmp", "strlen"];

/// Checks that C code could declare the function, and that it has no generic parameters.
fn check(signature: &Signature) -> Result<()> {
    let refused = |what: &dyn Spanned, why| Err(Error::new(what.span(), why));
    let name = signature.ident.to_string();
    let compiler_s = RUNTIME.contains(&name.as_str())
        || ["__", "_start", "rust_", "verbless_"].iter().any(|it| name.starts_with(it));
    match signature {
        _ if compiler_s => refused(
            &signature.ident,
            "this name is reserved for the compiler and verbless: choose another",
        ),
        Signature { asyncness: Some(token), .. } => refused(token, "an entry point is not async"),
        Signature { unsafety: Some(token), .. } => {
            refused(token, "an entry point cannot be unsafe: the host calls it with any arguments")
        }
        Signature { abi: Some(abi), .. } => {
            refused(abi, "leave `extern` out: the macro generates the `extern` entry point")
        }
        Signature { generics, .. } if !generics.params.is_empty() => {
            refused(generics, "an entry point cannot have generic parameters")
        }
        Signature { variadic: Some(variadic), .. } => {
            refused(variadic, "an entry point has a fixed number of arguments")
        }
        _ => Ok(()),
    }
}

/// The name of a type that fits a word.
fn word(of: &Type) -> Result<String> {
    let name = match of {
        Type::Path(path) => path.path.get_ident().map(ToString::to_string),
        _ => None,
    };
    name.filter(|name| WORDS.contains(&name.as_str())).ok_or_else(|| {
        let why = format!("a word in a register is one of {}", WORDS.join(", "));
        Error::new(of.span(), why)
    })
}

/// The types of the function's arguments.
fn arguments(signature: &Signature) -> Result<Vec<&Type>> {
    let types = signature.inputs.iter().map(|argument| match argument {
        FnArg::Typed(typed) => Ok(&*typed.ty),
        FnArg::Receiver(this) => Err(Error::new(this.span(), "an entry point cannot be a method")),
    });
    types.collect()
}

fn expand_rpc(item: &ItemFn) -> Result<Tokens> {
    let signature = &item.sig;
    check(signature)?;
    let types = arguments(signature)?;
    if let Some(more) = types.get(ARGUMENTS) {
        let why = "a call has 16 arguments at most: pass the address of a block of memory";
        return Err(Error::new(more.span(), why));
    }
    let names = types.iter().map(|it| word(it)).collect::<Result<Vec<_>>>()?;
    let result = match &signature.output {
        ReturnType::Default => String::new(),
        ReturnType::Type(_, returned) => format!("->{}", word(returned)?),
    };
    let symbol = format!("dpa:{}({}){result}", signature.ident, names.join(","));
    let words: Vec<_> = (0..types.len()).map(|at| format_ident!("a{at}")).collect();
    let name = &signature.ident;
    let call = quote!(#name(#(::verbless_flexio_dev::Word::from_word(#words)),*));
    let body = match types.len() <= REGISTERS {
        true => quote! {
            extern "C" fn entry(#(#words: u64),*) -> u64 {
                ::verbless_flexio_dev::Word::to_word(#call)
            }
        },
        false => quote! {
            #[allow(unsafe_code)]
            extern "C" fn entry(packed: u64) -> u64 {
                // SAFETY: the host calls it with a buffer of as many words as its signature has.
                let [#(#words),*] = unsafe { ::verbless_flexio_dev::word::unpack(packed) };
                ::verbless_flexio_dev::Word::to_word(#call)
            }
        },
    };
    Ok(entry_point(item, &symbol, &body))
}

fn expand_handler(item: &ItemFn) -> Result<Tokens> {
    let signature = &item.sig;
    check(signature)?;
    let types = arguments(signature)?;
    let [argument] = types[..] else {
        let why = "an event handler has one argument, a u64, which the host sets";
        return Err(Error::new(signature.span(), why));
    };
    if word(argument)? != "u64" {
        return Err(Error::new(argument.span(), "the argument of an event handler is a u64"));
    }
    let name = &signature.ident;
    let never = match &signature.output {
        ReturnType::Type(_, returned) => matches!(**returned, Type::Never(_)),
        ReturnType::Default => false,
    };
    let body = if never {
        quote! {
            extern "C" fn entry(argument: u64) -> ! {
                #name(argument)
            }
        }
    } else {
        // A returned type other than `Next` is an error at the return type.
        let returned = signature.output.span();
        let ends = quote_spanned! {returned=>
            let next = ::core::convert::Into::<::verbless_flexio_dev::system::Next>::into(next);
        };
        quote! {
            #[allow(unsafe_code)]
            extern "C" fn entry(argument: u64) -> ! {
                let next = #name(argument);
                #ends
                // SAFETY: the handler has returned, and nothing else is on the stack.
                unsafe { next.end() }
            }
        }
    };
    Ok(entry_point(item, &format!("dpa:{name}"), &body))
}

/// The unchanged function, its entry point, and the symbol that describes it.
fn entry_point(item: &ItemFn, symbol: &str, body: &Tokens) -> Tokens {
    let name = item.sig.ident.to_string();
    let section = format!(".text.dpa.{name}");
    // Only the DPA's binaries have these sections; code for other machines calls the function
    // itself.
    quote! {
        #item
        #[cfg(all(target_arch = "riscv64", target_os = "none"))]
        const _: () = {
            #[unsafe(export_name = #name)]
            #[unsafe(link_section = #section)]
            #body

            #[used]
            #[unsafe(export_name = #symbol)]
            #[unsafe(link_section = ".dpa.functions")]
            static SIGNATURE: u8 = 0;
        };
    }
}

#[cfg(test)]
mod tests {
    use syn::parse_str;

    use super::*;

    fn rpc_of(text: &str) -> std::result::Result<String, String> {
        let item = parse_str(text).unwrap();
        expand_rpc(&item).map(|it| it.to_string()).map_err(|error| error.to_string())
    }

    fn handler_of(text: &str) -> std::result::Result<String, String> {
        let item = parse_str(text).unwrap();
        expand_handler(&item).map(|it| it.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn symbols_carry_signature() {
        let add = rpc_of("fn add(a: u64, b: i8) -> bool { a == b as u64 }").unwrap();
        assert!(add.contains("\"dpa:add(u64,i8)->bool\"") && add.contains("\"add\""), "{add}");
        assert!(rpc_of("fn reset() {}").unwrap().contains("\"dpa:reset()\""));
        assert!(handler_of("fn on(argument: u64) {}").unwrap().contains("\"dpa:on\""));
        assert!(handler_of("fn on(argument: u64) -> ! { loop {} }").is_ok());
        let ends = handler_of("fn on(argument: u64) -> Next { Next::Retrigger }").unwrap();
        assert!(ends.contains("system :: Next"), "{ends}");
    }

    #[test]
    fn non_word_types_are_rejected_with_alternatives() {
        for text in
            ["fn f(a: &u8) {}", "fn f(a: (u8, u8)) {}", "fn f(a: f32) {}", "fn f(a: core::u8) {}"]
        {
            assert!(rpc_of(text).unwrap_err().starts_with("a word in a register is one of u8"));
        }
        assert!(rpc_of("fn f() -> u128 { 0 }").unwrap_err().contains("u64"));
    }

    #[test]
    fn invalid_entry_points_are_rejected() {
        let with = |count| {
            let arguments: Vec<_> = (0..count).map(|at| format!("a{at}: u8")).collect();
            format!("fn f({}) {{}}", arguments.join(", "))
        };
        assert!(!rpc_of(&with(8)).unwrap().contains("unpack"));
        for count in [9, 16] {
            let entry = rpc_of(&with(count)).unwrap();
            assert!(entry.contains("word :: unpack (packed)"), "{entry}");
        }
        let seventeen = with(17);
        let refused = [
            (seventeen.as_str(), "16 arguments at most"),
            ("async fn f() {}", "async"),
            ("unsafe fn f() {}", "unsafe"),
            ("extern \"C\" fn f() {}", "extern"),
            ("fn f<T>() {}", "parameters"),
            ("fn f(&self) {}", "method"),
            ("fn memcpy(a: u64) {}", "reserved for the compiler"),
            ("fn __divdi3(a: u64) {}", "reserved for the compiler"),
        ];
        for (text, why) in refused {
            let error = rpc_of(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        for text in [
            "fn f() {}",
            "fn f(a: u64, b: u64) {}",
            "fn f(a: u32) {}",
            "fn f(a: u64, b: u8) -> ! { loop {} }",
        ] {
            assert!(handler_of(text).is_err(), "{text}");
        }
    }
}
