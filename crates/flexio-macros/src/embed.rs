//! A program's file in the host's binary, and a constant for each of its entry points.

use std::path::{Path, PathBuf};

use proc_macro2::TokenStream as Tokens;
use quote::{format_ident, quote};
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, Error, Ident, LitStr, Result, Token, Visibility};
use verbless_riscv::Program;

use crate::WORDS;

/// `pub mod NAME = "PATH";`
pub(crate) struct Embed {
    attributes: Vec<Attribute>,
    visibility: Visibility,
    name: Ident,
    path: LitStr,
}

impl Parse for Embed {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let (attributes, visibility) = (input.call(Attribute::parse_outer)?, input.parse()?);
        input.parse::<Token![mod]>()?;
        let name = input.parse()?;
        input.parse::<Token![=]>()?;
        let path = input.parse()?;
        input.parse::<Option<Token![;]>>()?;
        Ok(Self { attributes, visibility, name, path })
    }
}

/// The module.
pub(crate) fn expand(item: &Embed) -> Result<Tokens> {
    let root = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default();
    let file = root.join(item.path.value());
    let refused = |why: String| Error::new(item.path.span(), format!("{}: {why}", file.display()));
    let bytes = std::fs::read(&file).map_err(|error| {
        refused(format!("{error}; `cargo xtask dpa build CRATE` makes programs"))
    })?;
    let program = Program::parse(&bytes).map_err(|error| refused(error.to_string()))?;
    let entries = program.symbols().filter_map(|(name, _)| name.strip_prefix("dpa:"));
    let entries = entries.map(|it| entry(it).map_err(&refused)).collect::<Result<Vec<_>>>()?;
    if entries.is_empty() {
        return Err(refused("no function of it has #[rpc] or #[event_handler]".into()));
    }
    let Embed { attributes, visibility, name, .. } = item;
    let (shown, path) = (name.to_string(), path_of(&file));
    Ok(quote! {
        #(#attributes)*
        #[allow(non_upper_case_globals, reason = "the functions' own names")]
        #visibility mod #name {
            /// The program.
            pub const APP: ::verbless_flexio::Embedded =
                ::verbless_flexio::Embedded::new(#shown, include_bytes!(#path));
            #(#entries)*
        }
    })
}

fn path_of(file: &Path) -> String {
    std::path::absolute(file).unwrap_or_else(|_| file.into()).display().to_string()
}

/// The constant of an entry point, by its signature.
fn entry(signature: &str) -> std::result::Result<Tokens, String> {
    let odd = || format!("its symbol dpa:{signature} is no signature of an entry point");
    let (name, types) = match signature.split_once('(') {
        Some((name, types)) => (name, Some(types)),
        None => (signature, None),
    };
    let constant = syn::parse_str::<Ident>(name).map_err(|_| odd())?;
    let doc = format!("`{signature}`");
    let Some(types) = types else {
        return Ok(quote! {
            #[doc = #doc]
            pub const #constant: ::verbless_flexio::Handler =
                ::verbless_flexio::Handler::embedded(#name);
        });
    };
    let (arguments, result) = types.split_once(')').ok_or_else(odd)?;
    let word = |name: &str| match WORDS.contains(&name) {
        true => Ok(format_ident!("{name}")),
        false => Err(odd()),
    };
    let arguments = arguments.split(',').filter(|it| !it.is_empty()).map(word);
    let arguments = arguments.collect::<std::result::Result<Vec<_>, _>>()?;
    let result = match result.strip_prefix("->") {
        Some(name) => {
            let name = word(name)?;
            quote!(#name)
        }
        None if result.is_empty() => quote!(()),
        None => return Err(odd()),
    };
    Ok(quote! {
        #[doc = #doc]
        pub const #constant: ::verbless_flexio::Function<(#(#arguments,)*), #result> =
            ::verbless_flexio::Function::embedded(#signature);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_entry_point_is_a_constant_with_its_types() {
        let add = entry("add(u64,u32)->i64").unwrap().to_string();
        assert!(
            add.contains("pub const add : :: verbless_flexio :: Function < (u64 , u32 ,) , i64 >")
        );
        assert!(entry("reset()").unwrap().to_string().contains("Function < () , () >"));
        assert!(entry("on_cqe").unwrap().to_string().contains(":: Handler = "));
    }

    #[test]
    fn symbols_that_are_no_signatures_are_refused() {
        for text in
            ["", "a b", "add(u128)", "add(u64", "add(u64)u64", "add(u64)->f32", "1(u8)", "fn"]
        {
            assert!(entry(text).is_err(), "{text}");
        }
    }
}
