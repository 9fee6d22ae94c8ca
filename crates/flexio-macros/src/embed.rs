//! A program's file in the host's binary, and a constant for each of its entry points.

use std::path::{Path, PathBuf};

use proc_macro2::TokenStream as Tokens;
use quote::{format_ident, quote};
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, Error, Ident, LitStr, Result, Token, Visibility, parenthesized, token};
use verbless_riscv::Program;

use crate::WORDS;

/// `pub mod NAME = "PATH";`, with the path of `verbless-flexio` in parentheses before it.
pub(crate) struct Embed {
    library: Tokens,
    attributes: Vec<Attribute>,
    visibility: Visibility,
    name: Ident,
    path: LitStr,
}

impl Parse for Embed {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let library = if input.peek(token::Paren) {
            let library;
            parenthesized!(library in input);
            library.parse()?
        } else {
            quote!(::verbless_flexio)
        };
        let (attributes, visibility) = (input.call(Attribute::parse_outer)?, input.parse()?);
        input.parse::<Token![mod]>()?;
        let name = input.parse()?;
        input.parse::<Token![=]>()?;
        let path = input.parse()?;
        input.parse::<Option<Token![;]>>()?;
        Ok(Self { library, attributes, visibility, name, path })
    }
}

/// Generates the module.
pub(crate) fn expand(item: &Embed) -> Result<Tokens> {
    let root = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default();
    let file = root.join(item.path.value());
    let refused = |why: String| Error::new(item.path.span(), format!("{}: {why}", file.display()));
    let bytes = std::fs::read(&file).map_err(|error| {
        refused(format!("{error}; `cargo xtask dpa build CRATE` builds programs"))
    })?;
    let program = Program::parse(&bytes).map_err(|error| refused(error.to_string()))?;
    let entries = program.symbols().filter_map(|(name, _)| name.strip_prefix("dpa:"));
    let library = &item.library;
    let entries = entries.map(|it| entry(library, it).map_err(&refused));
    let entries = entries.collect::<Result<Vec<_>>>()?;
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
            pub const APP: #library::Embedded =
                #library::Embedded::new(#shown, include_bytes!(#path));
            #(#entries)*
        }
    })
}

fn path_of(file: &Path) -> String {
    std::path::absolute(file).unwrap_or_else(|_| file.into()).display().to_string()
}

/// Generates the constant of an entry point, from its signature.
fn entry(library: &Tokens, signature: &str) -> std::result::Result<Tokens, String> {
    let odd = || format!("its symbol dpa:{signature} is not the signature of an entry point");
    let (name, types) = match signature.split_once('(') {
        Some((name, types)) => (name, Some(types)),
        None => (signature, None),
    };
    let constant = syn::parse_str::<Ident>(name).map_err(|_| odd())?;
    let doc = format!("`{signature}`");
    let Some(types) = types else {
        return Ok(quote! {
            #[doc = #doc]
            pub const #constant: #library::Handler = #library::Handler::embedded(#name);
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
        pub const #constant: #library::Function<(#(#arguments,)*), #result> =
            #library::Function::embedded(#signature);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(signature: &str) -> std::result::Result<Tokens, String> {
        entry(&quote!(::verbless_flexio), signature)
    }

    #[test]
    fn embed_takes_library_path() {
        let item = "(verbless::flexio) pub mod program = \"none\";";
        let item: Embed = syn::parse_str(item).unwrap();
        assert_eq!(item.library.to_string(), "verbless :: flexio");
        let item: Embed = syn::parse_str("mod program = \"none\";").unwrap();
        assert_eq!(item.library.to_string(), ":: verbless_flexio");
    }

    #[test]
    fn entry_points_become_typed_constants() {
        let add = of("add(u64,u32)->i64").unwrap().to_string();
        assert!(
            add.contains("pub const add : :: verbless_flexio :: Function < (u64 , u32 ,) , i64 >")
        );
        assert!(of("reset()").unwrap().to_string().contains("Function < () , () >"));
        assert!(of("on_cqe").unwrap().to_string().contains(":: Handler = "));
    }

    #[test]
    fn invalid_signatures_are_rejected() {
        for text in
            ["", "a b", "add(u128)", "add(u64", "add(u64)u64", "add(u64)->f32", "1(u8)", "fn"]
        {
            assert!(of(text).is_err(), "{text}");
        }
    }
}
